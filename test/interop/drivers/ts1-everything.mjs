// TypeScript SDK v1 client (2025-era session). Upstream: @modelcontextprotocol/server-everything in streamableHttp mode.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as T from '@modelcontextprotocol/sdk/types.js';
import { url, P, check, assert, eq, until, sleep, skip, done } from '../lib/check.mjs';

const seen = { sampling: [], elicit: [], roots: 0, log: [], updated: [], toolsChanged: 0, headers: [] };
async function connect() {
  const client = new Client(
    { name: 'interop-ts1', version: '1.0.0' },
    {
      capabilities: {
        sampling: {},
        elicitation: { form: {}, url: {} },
        roots: { listChanged: true },
        tasks: { requests: { elicitation: { create: {} }, sampling: { createMessage: {} } } },
      },
    },
  );
  client.setRequestHandler(T.CreateMessageRequestSchema, async (r) => {
    seen.sampling.push(r.params);
    return {
      model: 'stub-model',
      role: 'assistant',
      stopReason: 'endTurn',
      content: { type: 'text', text: 'sampled-by-driver' },
    };
  });
  client.setRequestHandler(T.ElicitRequestSchema, async (r) => {
    seen.elicit.push(r.params);
    const props = r.params.requestedSchema?.properties ?? {};
    const content = {};
    for (const [k, s] of Object.entries(props))
      content[k] =
        s.type === 'boolean'
          ? true
          : s.type === 'integer' || s.type === 'number'
            ? Math.max(s.minimum ?? 1, 1)
            : s.type === 'array'
              ? [s.items?.enum?.[0] ?? s.items?.anyOf?.[0]?.const ?? s.items?.oneOf?.[0]?.const ?? 'x']
              : (s.enum?.[0] ??
                s.oneOf?.[0]?.const ??
                (s.format === 'email'
                  ? 'a@example.com'
                  : s.format === 'uri'
                    ? 'https://example.com/'
                    : s.format === 'date'
                      ? '2026-01-02'
                      : s.format === 'date-time'
                        ? '2026-01-02T03:04:05Z'
                        : 'driver'));
    return { action: 'accept', content };
  });
  client.setRequestHandler(T.ListRootsRequestSchema, async () => {
    seen.roots++;
    return { roots: [{ uri: 'file:///interop/driver-root', name: 'driver root' }] };
  });
  client.setNotificationHandler(T.LoggingMessageNotificationSchema, (n) => {
    seen.log.push(n.params);
  });
  client.setNotificationHandler(T.ResourceUpdatedNotificationSchema, (n) => {
    seen.updated.push(n.params.uri);
  });
  client.setNotificationHandler(T.ToolListChangedNotificationSchema, () => {
    seen.toolsChanged++;
  });
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    fetch: (u, o) =>
      fetch(u, o).then((r) => {
        seen.headers.push([o?.method ?? 'GET', r.status]);
        return r;
      }),
  });
  await client.connect(transport);
  return { client, transport };
}
let c, tr;
await check('initialize', async () => {
  ({ client: c, transport: tr } = await connect());
  const caps = c.getServerCapabilities();
  for (const k of ['tools', 'prompts', 'resources', 'logging', 'completions'])
    assert(caps[k], `capability ${k} missing`);
  assert(caps.resources.subscribe, 'resources.subscribe missing');
  return `session=${tr.sessionId ? 'yes' : 'no'} version=${tr.protocolVersion}`;
});
if (!c) done();
const call = (name, args = {}, o) => c.callTool({ name: P + name, arguments: args }, undefined, o);
const txt = (r) => r.content.map((x) => x.text ?? '').join('\n');
await check('ping', async () => eq(Object.keys(await c.ping()).filter((k) => k !== '_meta').length, 0));
await check('standalone-get-stream', async () => {
  await until(() => seen.headers.find(([m]) => m === 'GET'), 5000, 'the GET stream attempt');
  const s = seen.headers.find(([m]) => m === 'GET')[1];
  assert(s === 200, `GET answered ${s}`);
  return `GET ${s}`;
});
await check('tools-list', async () => {
  const t = (await c.listTools()).tools.map((x) => x.name);
  for (const n of [
    'echo',
    'get-sum',
    'get-structured-content',
    'trigger-long-running-operation',
    'toggle-subscriber-updates',
  ])
    assert(t.includes(P + n), `tool ${n} missing from ${t}`);
  return `${t.length} tools`;
});
await check('capability-gated-tools', async () => {
  const t = await until(
    async () => {
      const l = (await c.listTools()).tools.map((x) => x.name);
      return l.includes(P + 'trigger-sampling-request') && l;
    },
    5000,
    'trigger-sampling-request (registered only for clients that declare sampling)',
  );
  for (const n of ['trigger-elicitation-request', 'get-roots-list']) assert(t.includes(P + n), `${n} missing`);
});
await check('call-echo', async () =>
  eq(txt(await call('echo', { message: 'héllo ✓ "quoted" \\ \u2028' })), 'Echo: héllo ✓ "quoted" \\ \u2028'),
);
await check('call-sum', async () => assert(/\b5\b/.test(txt(await call('get-sum', { a: 2, b: 3 })))));
await check('call-structured', async () => {
  const r = await call('get-structured-content', { location: 'Chicago' });
  assert(
    typeof r.structuredContent?.temperature === 'number',
    `structuredContent ${JSON.stringify(r.structuredContent)}`,
  );
});
await check('call-image', async () => {
  const r = await call('get-tiny-image');
  const i = r.content.find((x) => x.type === 'image');
  assert(i && Buffer.from(i.data, 'base64').subarray(1, 4).toString() === 'PNG', 'not a PNG');
});
await check('call-annotations', async () => {
  const r = await call('get-annotated-message', { messageType: 'error', includeImage: false });
  assert(r.content[0].annotations?.priority !== undefined, 'annotations lost');
});
await check('call-resource-links', async () => {
  const r = await call('get-resource-links', { count: 4 });
  eq(r.content.filter((x) => x.type === 'resource_link').length, 4);
});
await check('call-bad-arguments', async () => {
  let r;
  try {
    r = await call('get-sum', { a: 'x' });
  } catch (e) {
    eq(e.code, -32602, 'code');
    return 'JSON-RPC error -32602';
  }
  assert(r.isError, 'neither isError nor an error');
  return 'isError';
});
await check('call-unknown-tool', async () => {
  try {
    const r = await call('no-such-tool-xyz');
    assert(r.isError, 'accepted');
  } catch (e) {
    assert([-32602, -32601].includes(e.code), `code ${e.code}`);
  }
});
await check('progress', async () => {
  const p = [];
  const r = await call(
    'trigger-long-running-operation',
    { duration: 1, steps: 4 },
    { onprogress: (x) => p.push(x.progress) },
  );
  await sleep(50);
  assert(/completed/.test(txt(r)));
  eq(p, [1, 2, 3, 4], 'progress');
});
await check('progress-concurrent', async () => {
  const one = async (steps) => {
    const p = [];
    await call('trigger-long-running-operation', { duration: 1, steps }, { onprogress: (x) => p.push(x.progress) });
    await sleep(50);
    eq(
      p,
      Array.from({ length: steps }, (_, i) => i + 1),
      `progress of the ${steps}-step call`,
    );
  };
  await Promise.all([3, 5, 7, 9].map(one));
});
await check('cancel', async () => {
  const ac = new AbortController();
  const t0 = Date.now();
  setTimeout(() => ac.abort('driver'), 300);
  let threw;
  try {
    await call('trigger-long-running-operation', { duration: 8, steps: 4 }, { signal: ac.signal });
  } catch (e) {
    threw = e;
  }
  assert(threw, 'the cancelled call returned');
  assert(Date.now() - t0 < 3000, 'took too long');
  eq(txt(await call('echo', { message: 'after' })), 'Echo: after');
});
await check('sampling', async () => {
  const n = seen.sampling.length;
  const r = await call('trigger-sampling-request', { prompt: 'ping-the-model', maxTokens: 77 });
  eq(seen.sampling.length, n + 1, 'sampling requests seen');
  eq(seen.sampling.at(-1).maxTokens, 77, 'maxTokens');
  assert(/sampled-by-driver/.test(JSON.stringify(r)), 'answer did not reach the server');
});
await check('elicitation', async () => {
  const n = seen.elicit.length;
  const r = await call('trigger-elicitation-request');
  eq(seen.elicit.length, n + 1, 'elicitations seen');
  assert(Object.keys(seen.elicit.at(-1).requestedSchema.properties).length > 3, 'schema cut');
  assert(!r.isError && /accept|driver|provided/i.test(JSON.stringify(r)), txt(r));
});
await check('elicitation-url', async () => {
  const names = (await c.listTools()).tools.map((x) => x.name);
  if (!names.includes(P + 'trigger-url-elicitation')) skip('not offered by this server version');
  const n = seen.elicit.length;
  await call('trigger-url-elicitation', { url: 'https://example.com/x', message: 'm' });
  eq(seen.elicit.length, n + 1, 'elicitations seen');
  eq(seen.elicit.at(-1).mode, 'url', 'mode');
});
await check('roots', async () => {
  const r = await call('get-roots-list');
  assert(/driver-root|driver root/.test(txt(r)), txt(r).slice(0, 200));
});
await check('prompts', async () => {
  const l = (await c.listPrompts()).prompts.map((x) => x.name);
  assert(l.includes(P + 'simple-prompt'), `${l}`);
  const g = await c.getPrompt({ name: P + 'args-prompt', arguments: { city: 'Oslo', state: 'X' } });
  assert(/Oslo/.test(JSON.stringify(g.messages)));
});
await check('completion', async () => {
  const r = await c.complete({
    ref: { type: 'ref/prompt', name: P + 'completable-prompt' },
    argument: { name: 'department', value: 'E' },
  });
  assert(r.completion.values.includes('Engineering'), JSON.stringify(r.completion));
});
await check('resources-list-read', async () => {
  const l = (await c.listResources()).resources;
  assert(l.length > 3, `${l.length}`);
  const r = await c.readResource({ uri: l[0].uri });
  assert(r.contents[0].text?.length > 50);
});
await check('resource-template-text', async () => {
  const r = await c.readResource({ uri: 'demo://resource/dynamic/text/7' });
  assert(/7/.test(r.contents[0].text));
});
await check('resource-template-blob', async () => {
  const r = await c.readResource({ uri: 'demo://resource/dynamic/blob/3' });
  assert(r.contents[0].blob, 'no blob');
  assert(Buffer.from(r.contents[0].blob, 'base64').length > 5);
});
await check('resource-subscribe', async () => {
  const uri = 'demo://resource/dynamic/text/1';
  const n = seen.updated.length;
  await c.subscribeResource({ uri });
  await call('toggle-subscriber-updates');
  await until(() => seen.updated.slice(n).includes(uri), 8000, 'resources/updated');
  await call('toggle-subscriber-updates');
  await c.unsubscribeResource({ uri });
});
await check('logging', async () => {
  const n = seen.log.length;
  await c.setLoggingLevel('debug');
  await call('toggle-simulated-logging');
  await until(() => seen.log.length > n, 12000, 'notifications/message');
  await call('toggle-simulated-logging');
});
await check('task-2025', async () => {
  const seenTypes = [];
  for await (const m of c.experimental.tasks.callToolStream(
    { name: P + 'simulate-research-query', arguments: { topic: 'python', ambiguous: false } },
    T.CallToolResultSchema,
    { task: { ttl: 60000 } },
  )) {
    seenTypes.push(m.type);
    if (m.type === 'error') throw m.error;
    if (m.type === 'result') assert(/Research Report/.test(txt(m.result)));
  }
  assert(seenTypes.includes('taskCreated') && seenTypes.includes('result'), seenTypes.join());
  return seenTypes.join('>');
});
await check('two-sessions-isolated', async () => {
  const o = await connect();
  try {
    assert(o.transport.sessionId !== tr.sessionId || !tr.sessionId, 'two connections share a session id');
    const n = seen.sampling.length;
    const r = await o.client.callTool({
      name: P + 'trigger-sampling-request',
      arguments: { prompt: 'from-second', maxTokens: 5 },
    });
    eq(seen.sampling.length, n + 1, 'sampling requests');
    assert(JSON.stringify(r).includes('sampled-by-driver'));
  } finally {
    await o.client.close();
  }
});
await check('session-delete', async () => {
  if (!tr.sessionId) skip('no session id');
  const sid = tr.sessionId,
    ver = tr.protocolVersion;
  await tr.terminateSession();
  const r = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-session-id': sid,
      'mcp-protocol-version': ver,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
  });
  await r.text();
  assert(r.status === 404 || r.status === 400, `HTTP ${r.status} for a deleted session`);
  return `HTTP ${r.status}`;
});
done();
