// TypeScript SDK v2 client pinned to 2026-07-28. Upstream: go-sdk v1.8.0 conformance server, stateless (its default).
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { url, P, check, assert, eq, until, sleep, done } from '../lib/check.mjs';
const seen = { elicit: [], sampling: [], roots: 0, updated: [], prog: [], tools: 0, prompts: 0 };
const wire = [];
function make(opts = {}) {
  const c = new Client(
    { name: 'interop-ts2', version: '1.0.0' },
    {
      capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
      versionNegotiation: { mode: { pin: '2026-07-28' } },
      ...opts,
    },
  );
  c.setRequestHandler('elicitation/create', async (r) => {
    seen.elicit.push(r.params);
    return {
      action: 'accept',
      content: { name: 'Grace', username: 'grace', email: 'g@example.com', color: 'red', confirm: true },
    };
  });
  c.setRequestHandler('sampling/createMessage', async (r) => {
    seen.sampling.push(r.params);
    return {
      model: 'stub',
      role: 'assistant',
      stopReason: 'endTurn',
      content: { type: 'text', text: 'sampled-by-ts2' },
    };
  });
  c.setRequestHandler('roots/list', async () => {
    seen.roots++;
    return { roots: [{ uri: 'file:///interop/ts2', name: 'ts2' }] };
  });
  c.setNotificationHandler('notifications/resources/updated', (n) => {
    seen.updated.push(n.params.uri);
  });
  c.setNotificationHandler('notifications/tools/list_changed', () => {
    seen.tools++;
  });
  c.setNotificationHandler('notifications/prompts/list_changed', () => {
    seen.prompts++;
  });
  return c;
}
const transport = () =>
  new StreamableHTTPClientTransport(new URL(url), {
    fetch: async (u, o) => {
      const r = await fetch(u, o);
      wire.push({ method: o?.method, status: r.status, sid: r.headers.get('mcp-session-id') });
      return r;
    },
  });
let c;
await check('discover', async () => {
  const x = make();
  await x.connect(transport());
  c = x;
  eq(c.getNegotiatedProtocolVersion(), '2026-07-28', 'negotiated');
  const d = c.getDiscoverResult() ?? (await c.discover());
  assert(d.supportedVersions.includes('2026-07-28'), JSON.stringify(d.supportedVersions));
  for (const k of ['tools', 'prompts', 'resources']) assert(c.getServerCapabilities()[k], `capability ${k} missing`);
  return JSON.stringify(c.getServerVersion());
});
if (!c) done();
const call = (name, args = {}, o) => c.callTool({ name: P + name, arguments: args }, o);
const has = (r, s) => assert(JSON.stringify(r).includes(s), `no ${s} in ${JSON.stringify(r).slice(0, 250)}`);
await check('auto-negotiation', async () => {
  const a = make({ versionNegotiation: { mode: 'auto' } });
  await a.connect(transport());
  eq(a.getNegotiatedProtocolVersion(), '2026-07-28', 'negotiated by auto');
  await a.close();
});
await check('no-session-header', async () => {
  await c.listTools();
  assert(
    wire.every((w) => !w.sid),
    'a 2026-07-28 answer carried Mcp-Session-Id',
  );
});
await check('tools-list', async () => {
  const t = (await c.listTools()).tools.map((x) => x.name);
  for (const n of ['test_simple_text', 'test_x_mcp_header', 'test_input_required_result_elicitation'])
    assert(t.includes(P + n), `${n} missing`);
  return `${t.length} tools`;
});
await check('call-text', async () => has(await call('test_simple_text'), 'simple text response'));
await check('call-image-audio', async () => {
  has(await call('test_image_content'), '"type":"image"');
  has(await call('test_audio_content'), '"type":"audio"');
});
await check('call-error', async () => {
  const r = await call('test_error_handling');
  eq(r.isError, true, 'isError');
});
await check('progress', async () => {
  const p = [];
  const r = await call('test_tool_with_progress', {}, { onprogress: (x) => p.push(x.progress) });
  await sleep(50);
  eq(p, [0, 50, 100], 'progress');
  assert(!r.isError);
});
await check('progress-concurrent', async () => {
  await Promise.all(
    Array.from({ length: 6 }, async () => {
      const p = [];
      await call('test_tool_with_progress', {}, { onprogress: (x) => p.push(x.progress) });
      await sleep(50);
      eq(p, [0, 50, 100], 'progress');
    }),
  );
});
await check('cancel-by-abort', async () => {
  const ac = new AbortController();
  setTimeout(() => ac.abort(), 40);
  let e;
  try {
    await call('test_tool_with_progress', {}, { signal: ac.signal, onprogress: () => {} });
  } catch (x) {
    e = x;
  }
  assert(e, 'the aborted call returned');
  has(await call('test_simple_text'), 'simple text response');
});
await check('mrtr-elicitation', async () => {
  const n = seen.elicit.length;
  has(await call('test_input_required_result_elicitation'), 'Grace');
  eq(seen.elicit.length, n + 1, 'elicitations');
});
await check('mrtr-sampling', async () => {
  const n = seen.sampling.length;
  has(await call('test_input_required_result_sampling'), 'sampled-by-ts2');
  eq(seen.sampling.length, n + 1, 'samplings');
});
await check('mrtr-roots', async () => {
  const n = seen.roots;
  has(await call('test_input_required_result_list_roots'), 'ts2');
  eq(seen.roots, n + 1, 'roots/list');
});
await check('mrtr-multiple', async () => {
  const a = [seen.elicit.length, seen.sampling.length, seen.roots];
  const r = await call('test_input_required_result_multiple_inputs');
  assert(!r.isError, JSON.stringify(r));
  assert(
    seen.elicit.length > a[0] && seen.sampling.length > a[1] && seen.roots > a[2],
    'not every kind of input was asked for',
  );
});
await check('mrtr-request-state', async () => {
  const r = await call('test_input_required_result_request_state');
  assert(!r.isError, JSON.stringify(r).slice(0, 200));
});
await check('mrtr-multi-round', async () => {
  const n = seen.elicit.length;
  const r = await call('test_input_required_result_multi_round');
  assert(!r.isError);
  assert(seen.elicit.length - n >= 2, `${seen.elicit.length - n} rounds`);
  return `${seen.elicit.length - n} rounds`;
});
await check('mrtr-prompt', async () => {
  const r = await c.getPrompt({ name: P + 'test_input_required_result_prompt', arguments: {} });
  assert(r.messages.length > 0);
});
await check('param-header', async () =>
  has(await call('test_x_mcp_header', { region: 'Hello, 世界', level: 2 }), '世界'),
);
await check('structured-error', async () => {
  try {
    await call('no-such-tool-xyz');
  } catch (e) {
    assert(e.code === -32602 || e.code === -32601, `code ${e.code}`);
    return `code ${e.code}`;
  }
  throw new Error('accepted');
});
await check('resources', async () => {
  const l = (await c.listResources()).resources.map((x) => x.uri);
  assert(l.includes('test://static-text'), `${l}`);
  has(await c.readResource({ uri: 'test://static-text' }), 'static text');
  const b = await c.readResource({ uri: 'test://static-binary' });
  assert(Buffer.from(b.contents[0].blob, 'base64').subarray(1, 4).toString() === 'PNG', 'not a PNG');
  has(await c.readResource({ uri: 'test://template/123/data' }), '123');
});
await check('prompts', async () => {
  const g = await c.getPrompt({ name: P + 'test_prompt_with_arguments', arguments: { arg1: 'α', arg2: 'β' } });
  has(g, 'α');
});
await check('completion', async () => {
  const r = await c.complete({
    ref: { type: 'ref/prompt', name: P + 'test_prompt_with_arguments' },
    argument: { name: 'arg1', value: 'par' },
  });
  assert(Array.isArray(r.completion.values));
});
await check('listen-resource-updated', async () => {
  const n = seen.updated.length;
  const s = await c.listen({ resourceSubscriptions: ['test://watched-resource'] });
  assert(s.honoredFilter.resourceSubscriptions?.includes('test://watched-resource'), JSON.stringify(s.honoredFilter));
  await until(() => seen.updated.length > n, 9000, 'resources/updated on the listen stream');
  await s.close();
  eq(await s.closed, 'local', 'closed');
});
await check('listen-tools-changed', async () => {
  const n = seen.tools;
  const s = await c.listen({ toolsListChanged: true });
  await call('test_trigger_tool_change');
  await until(() => seen.tools > n, 6000, 'tools/list_changed');
  await s.close();
});
await check('listen-two-at-once', async () => {
  const a = await c.listen({ toolsListChanged: true });
  const b = await c.listen({ promptsListChanged: true });
  const [t, p] = [seen.tools, seen.prompts];
  await call('test_trigger_prompt_change');
  await until(() => seen.prompts > p, 6000, 'prompts/list_changed');
  await call('test_trigger_tool_change');
  await until(() => seen.tools > t, 6000, 'tools/list_changed');
  await a.close();
  await b.close();
});
await check('listen-does-not-block-calls', async () => {
  const s = await c.listen({ resourceSubscriptions: ['test://watched-resource'] });
  const t0 = Date.now();
  await Promise.all(Array.from({ length: 20 }, () => call('test_simple_text')));
  const d = Date.now() - t0;
  await s.close();
  return `20 calls in ${d} ms`;
});
await check('close', () => c.close());
done();
