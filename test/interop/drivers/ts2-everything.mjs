// TypeScript SDK v2 client pinned to 2026-07-28, at a server that has sessions only, through a proxy that translates.
// Upstream: @modelcontextprotocol/server-everything in streamableHttp mode.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { url, P, check, assert, eq, until, done } from '../lib/check.mjs';

const seen = { elicit: [], sampling: [], roots: 0, updated: [] };
let rounds = 0; // answers that asked
const client = new Client(
  { name: 'interop-ts2', version: '1.0.0' },
  {
    capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
    versionNegotiation: { mode: { pin: '2026-07-28' } },
  },
);
/** A value that a field of an elicitation takes. */
const value = (s) => {
  if (s.type === 'boolean') return true;
  if (s.type === 'integer' || s.type === 'number') return s.minimum ?? 1;
  if (s.type === 'array') return [s.items.enum?.[0] ?? s.items.anyOf[0].const];
  const formats = { email: 'a@example.com', uri: 'https://example.com/', date: '2026-01-02' };
  return s.enum?.[0] ?? s.oneOf?.[0]?.const ?? formats[s.format] ?? 'Ada Λ';
};
client.setRequestHandler('elicitation/create', async ({ params }) => {
  seen.elicit.push(params);
  if (params.mode === 'url') return { action: 'accept' };
  const fields = Object.entries(params.requestedSchema.properties);
  return { action: 'accept', content: Object.fromEntries(fields.map(([name, s]) => [name, value(s)])) };
});
client.setRequestHandler('sampling/createMessage', async ({ params }) => {
  seen.sampling.push(params);
  return { model: 'stub', role: 'assistant', stopReason: 'endTurn', content: { type: 'text', text: 'sampled-by-ts2' } };
});
client.setRequestHandler('roots/list', async () => {
  seen.roots++;
  return { roots: [{ uri: 'file:///interop/ts2-root', name: 'ts2 root' }] };
});
client.setNotificationHandler('notifications/resources/updated', (n) => void seen.updated.push(n.params.uri));
const transport = new StreamableHTTPClientTransport(new URL(url), {
  fetch: async (u, o) => {
    const r = await fetch(u, o);
    assert(!r.headers.get('mcp-session-id'), 'a 2026-07-28 answer carried Mcp-Session-Id');
    if (r.headers.get('content-type')?.includes('json') && (await r.clone().text()).includes('"input_required"'))
      rounds++;
    return r;
  },
});
let connected;
await check('discover', async () => {
  await client.connect(transport);
  connected = true;
  eq(client.getNegotiatedProtocolVersion(), '2026-07-28', 'negotiated');
  const caps = client.getServerCapabilities();
  for (const k of ['tools', 'prompts', 'resources', 'logging', 'completions'])
    assert(caps[k], `capability ${k} missing`);
  assert(!caps.tasks, 'the tasks of 2025-11-25 are offered to a stateless client');
});
if (!connected) done();
const call = (name, args = {}, o) => client.callTool({ name: P + name, arguments: args }, o);
const txt = (r) => r.content.map((x) => x.text ?? '').join('\n');
await check('capability-gated-tools', async () => {
  const gated = ['trigger-sampling-request', 'trigger-elicitation-request', 'get-roots-list'].map((n) => P + n);
  let names; // the server adds them when its session has been told that it is open
  await until(
    async () => {
      names = (await client.listTools()).tools.map((t) => t.name);
      return gated.every((n) => names.includes(n));
    },
    5000,
    gated,
  );
  return `${names.length} tools`;
});
await check('call-echo', async () =>
  eq(txt(await call('echo', { message: 'héllo ✓ "q" \\ \u2028' })), 'Echo: héllo ✓ "q" \\ \u2028'),
);
await check('call-structured', async () =>
  eq(typeof (await call('get-structured-content', { location: 'Chicago' })).structuredContent.temperature, 'number'),
);
await check('call-image', async () => {
  const image = (await call('get-tiny-image')).content.find((x) => x.type === 'image');
  eq(Buffer.from(image.data, 'base64').subarray(1, 4).toString(), 'PNG');
});
await check('call-resource-links', async () =>
  eq((await call('get-resource-links', { count: 4 })).content.filter((x) => x.type === 'resource_link').length, 4),
);
await check('call-unknown-tool', async () => {
  const r = await call('no-such-tool-xyz').catch((e) => e);
  assert(r.isError || r.code === -32602, JSON.stringify(r));
});
await check('elicitation', async () => {
  const before = rounds;
  const r = await call('trigger-elicitation-request');
  eq(rounds, before + 1, 'input_required');
  assert(Object.keys(seen.elicit.at(-1).requestedSchema.properties).length > 10, 'schema cut');
  assert(txt(r).includes('Ada Λ'), txt(r));
});
await check('elicitation-url', async () => {
  await call('trigger-url-elicitation', { url: 'https://example.com/x', message: 'm' });
  eq([seen.elicit.at(-1).mode, seen.elicit.at(-1).url], ['url', 'https://example.com/x']);
});
await check('elicitation-url-required', async () => {
  const before = rounds;
  const r = await call('trigger-url-elicitation', { url: 'https://example.com/y', message: 'm', errorPath: true });
  assert(rounds > before && !r.isError, txt(r));
  eq(seen.elicit.at(-1).url, 'https://example.com/y');
});
await check('sampling', async () => {
  const r = await call('trigger-sampling-request', { prompt: 'ping-the-model', maxTokens: 77 });
  eq(seen.sampling.at(-1).maxTokens, 77, 'maxTokens');
  assert(txt(r).includes('sampled-by-ts2'), txt(r));
});
await check('roots', async () => {
  const r = await call('get-roots-list');
  assert(seen.roots > 0 && txt(r).includes('ts2-root'), txt(r));
});
await check('progress', async () => {
  const p = [];
  await call('trigger-long-running-operation', { duration: 1, steps: 4 }, { onprogress: (x) => p.push(x.progress) });
  assert(p.length >= 3, `progress ${p}`); // the SDK drops what it reads together with the call's result
  eq(p, [1, 2, 3, 4].slice(0, p.length), 'progress');
});
await check('prompts', async () => {
  const l = (await client.listPrompts()).prompts.map((x) => x.name);
  assert(l.includes(P + 'simple-prompt'), `${l}`);
  const g = await client.getPrompt({ name: P + 'args-prompt', arguments: { city: 'Oslo', state: 'X' } });
  assert(JSON.stringify(g.messages).includes('Oslo'));
});
await check('completion', async () => {
  const ref = { type: 'ref/prompt', name: P + 'completable-prompt' };
  const r = await client.complete({ ref, argument: { name: 'department', value: 'E' } });
  assert(r.completion.values.includes('Engineering'), JSON.stringify(r.completion));
});
await check('resources', async () => {
  const l = (await client.listResources()).resources;
  assert((await client.readResource({ uri: l[0].uri })).contents[0].text.length > 50);
  assert((await client.listResourceTemplates()).resourceTemplates.length > 1);
  assert((await client.readResource({ uri: 'demo://resource/dynamic/text/7' })).contents[0].text.includes('7'));
  assert((await client.readResource({ uri: 'demo://resource/dynamic/blob/3' })).contents[0].blob);
});
await check('listen-resource-updated', async () => {
  const uri = 'demo://resource/dynamic/text/1';
  const s = await client.listen({ resourceSubscriptions: [uri] });
  eq(s.honoredFilter.resourceSubscriptions, [uri], 'granted');
  await call('toggle-subscriber-updates');
  await until(() => seen.updated.includes(uri), 8000, 'resources/updated');
  await call('toggle-subscriber-updates');
  await s.close();
});
await check('cancel', async () => {
  const gone = new AbortController();
  const t0 = Date.now();
  const long = call(
    'trigger-long-running-operation',
    { duration: 8, steps: 40 },
    { signal: gone.signal, onprogress: () => gone.abort() },
  );
  assert(
    await long.then(
      () => false,
      () => true,
    ),
    'the cancelled call returned',
  );
  assert(Date.now() - t0 < 5000, 'took too long');
  eq(txt(await call('echo', { message: 'after' })), 'Echo: after');
});
await check('close', () => client.close());
done();
