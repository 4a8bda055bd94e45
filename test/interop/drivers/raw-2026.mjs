// 2026-07-28 over bare HTTP: headers, errors, MRTR by hand, listen. Upstream: go-sdk v1.8.0 conformance server, stateless.
import { send, answer, start26, call26, meta26, V26 } from '../lib/raw.mjs';
import { url, P, check, strict, assert, eq, sleep, done } from '../lib/check.mjs';
const K = (k) => `io.modelcontextprotocol/${k}`;
const tool = (name, args = {}, extra = {}) => ({ name: P + name, arguments: args, ...extra });
const errOf = (a, code, status) => {
  assert(a.msg?.error, `no error: HTTP ${a.status} ${a.raw.slice(0, 200)}`);
  eq(a.msg.error.code, code, 'error code');
  if (status) eq(a.status, status, 'HTTP status');
};
await check('discover', async () => {
  const a = await call26(url, 'server/discover', {}, { id: 'd-1' });
  eq(a.status, 200, 'HTTP status');
  eq(a.msg.id, 'd-1', 'id');
  const r = a.msg.result;
  eq(r.resultType, 'complete', 'resultType');
  assert(r.supportedVersions.includes(V26), `${r.supportedVersions}`);
  assert(r.capabilities.tools, 'tools capability missing');
  assert(!a.headers['mcp-session-id'], 'Mcp-Session-Id on a stateless answer');
});
await check('no-handshake-needed', async () => {
  const a = await call26(url, 'tools/call', tool('test_simple_text'), { id: 5 });
  eq(a.msg.id, 5, 'id');
  eq(a.msg.result.resultType, 'complete', 'resultType');
});
await check('tools-list-cacheable', async () => {
  const a = await call26(url, 'tools/list');
  const r = a.msg.result;
  assert(Number.isInteger(r.ttlMs) && r.ttlMs >= 0, `ttlMs ${r.ttlMs}`);
  assert(['public', 'private'].includes(r.cacheScope), `cacheScope ${r.cacheScope}`);
});
await check('unsupported-version', async () => {
  const h = '2031-01-01';
  const a = await call26(
    url,
    'tools/list',
    {},
    { headers: { 'mcp-protocol-version': h }, meta: { [K('protocolVersion')]: h } },
  );
  errOf(a, -32022, 400);
  assert(a.msg.error.data?.supported?.includes(V26), JSON.stringify(a.msg.error.data));
});
await check('version-header-mismatch', async () =>
  errOf(await call26(url, 'tools/list', {}, { headers: { 'mcp-protocol-version': '2025-11-25' } }), -32020, 400),
);
await check('method-header-mismatch', async () =>
  errOf(
    await call26(url, 'tools/call', tool('test_simple_text'), { headers: { 'mcp-method': 'tools/list' } }),
    -32020,
    400,
  ),
);
await check('method-header-missing', async () =>
  errOf(await call26(url, 'tools/call', tool('test_simple_text'), { headers: { 'mcp-method': null } }), -32020, 400),
);
await check('name-header-mismatch', async () =>
  errOf(
    await call26(url, 'tools/call', tool('test_simple_text'), { headers: { 'mcp-name': P + 'test_image_content' } }),
    -32020,
    400,
  ),
);
await strict('name-header-base64', async () => {
  const a = await call26(url, 'tools/call', tool('test_simple_text'), {
    headers: { 'mcp-name': `=?base64?${Buffer.from(P + 'test_simple_text').toString('base64')}?=` },
  });
  assert(a.msg?.result, `HTTP ${a.status} ${a.raw.slice(0, 200)}`);
});
await check('param-header-mismatch', async () =>
  errOf(
    await call26(url, 'tools/call', tool('test_x_mcp_header', { region: 'eu', level: 1 }), {
      headers: { 'mcp-param-region': 'us' },
    }),
    -32020,
    400,
  ),
);
await check('param-header-match', async () => {
  const a = await call26(url, 'tools/call', tool('test_x_mcp_header', { region: 'eu', level: 1 }), {
    headers: { 'mcp-param-region': 'eu' },
  });
  assert(a.msg?.result && !a.msg.result.isError, `HTTP ${a.status} ${a.raw.slice(0, 200)}`);
});
await check('unknown-method', async () => errOf(await call26(url, 'acme/no-such-method'), -32601, 404));
await check('removed-methods', async () => {
  for (const m of ['initialize', 'ping', 'resources/subscribe', 'logging/setLevel']) {
    const a = await call26(url, m, m === 'resources/subscribe' ? { uri: 'test://static-text' } : {});
    errOf(a, -32601, 404);
  }
});
await check('get-not-allowed', async () => {
  const r = await send(url, { method: 'GET', headers: { 'mcp-protocol-version': V26 } });
  r.destroy();
  assert(r.status === 405, `HTTP ${r.status}`);
});
await check('parse-error', async () => {
  const r = await send(url, {
    headers: { 'mcp-protocol-version': V26, 'mcp-method': 'tools/list' },
    body: '{"jsonrpc":"2.0","id":1,',
  });
  const t = await r.text();
  assert(r.status === 400, `HTTP ${r.status} ${t.slice(0, 100)}`);
});
await check('ids-echoed', async () => {
  for (const id of [0, 1, 2147483648, 'abc', 'ünï-✓', '']) {
    const a = await call26(url, 'tools/call', tool('test_simple_text'), { id });
    eq(a.msg?.id, id, 'id');
  }
});
await check('progress-on-response-stream', async () => {
  const a = await call26(url, 'tools/call', tool('test_tool_with_progress'), {
    id: 'p',
    meta: { progressToken: 'tok-1' },
  });
  const p = a.others.filter((m) => m.method === 'notifications/progress');
  eq(
    p.map((m) => m.params.progress),
    [0, 50, 100],
    'progress',
  );
  assert(
    p.every((m) => m.params.progressToken === 'tok-1'),
    'token changed',
  );
  assert(a.sse, 'not an SSE answer');
});
await check('mrtr-by-hand', async () => {
  const caps = { elicitation: { form: {} } };
  const a = await call26(url, 'tools/call', tool('test_input_required_result_request_state'), { id: 'm1', caps });
  const r = a.msg.result;
  eq(r.resultType, 'input_required', 'resultType');
  assert(typeof r.requestState === 'string', 'requestState');
  const inputResponses = Object.fromEntries(
    Object.keys(r.inputRequests).map((k) => [k, { action: 'accept', content: { confirm: true, name: 'Lin' } }]),
  );
  const b = await call26(
    url,
    'tools/call',
    tool('test_input_required_result_request_state', {}, { inputResponses, requestState: r.requestState }),
    { id: 'm2', caps },
  );
  eq(b.msg.id, 'm2', 'id');
  eq(b.msg.result?.resultType, 'complete', 'resultType of the retry');
});
await check('mrtr-capability-gate', async () => {
  const a = await call26(url, 'tools/call', tool('test_missing_capability'));
  errOf(a, -32021, 400);
  assert(a.msg.error.data?.requiredCapabilities, JSON.stringify(a.msg.error));
});
await check('listen-ack-first', async () => {
  const r = await start26(
    url,
    'subscriptions/listen',
    { notifications: { resourceSubscriptions: ['test://watched-resource'] } },
    { id: 'sub-9' },
  );
  eq(r.status, 200, 'HTTP status');
  eq(r.type, 'text/event-stream', 'content type');
  const got = [];
  for await (const e of r.events) {
    if (!e.data) continue;
    got.push(JSON.parse(e.data));
    if (got.length === 2) break;
  }
  r.destroy();
  eq(got[0].method, 'notifications/subscriptions/acknowledged', 'first message');
  eq(got[1].method, 'notifications/resources/updated', 'second message');
  for (const m of got) eq(m.params._meta[K('subscriptionId')], 'sub-9', 'subscriptionId');
});
await check('listen-filter', async () => {
  const r = await start26(url, 'subscriptions/listen', { notifications: { toolsListChanged: true } }, { id: 77 });
  const got = [];
  const end = Date.now() + 4500;
  const it = r.events[Symbol.asyncIterator]();
  for (;;) {
    const x = await Promise.race([it.next(), sleep(Math.max(1, end - Date.now())).then(() => null)]);
    if (!x || x.done) break;
    if (x.value.data) got.push(JSON.parse(x.value.data).method);
  }
  r.destroy();
  eq(got, ['notifications/subscriptions/acknowledged'], 'messages in 4.5 s (no resource updates were asked for)');
});
await check('trace-context-kept', async () => {
  const a = await call26(url, 'tools/call', tool('test_simple_text'), {
    meta: {
      traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
      'com.example/unknown': { a: [1, null] },
    },
  });
  assert(a.msg?.result, `HTTP ${a.status} ${a.raw.slice(0, 200)}`);
});
await strict('origin-rejected', async () => {
  const r = await start26(url, 'tools/list', {}, { headers: { origin: 'http://evil.example.com' } });
  await r.text();
  eq(r.status, 403, 'HTTP status');
});
await check('accept-json-only', async () => {
  const r = await start26(url, 'tools/list', {}, { headers: { accept: 'application/json' } });
  const t = await r.text();
  assert([200, 406, 400].includes(r.status), `HTTP ${r.status} ${t.slice(0, 100)}`);
  return `HTTP ${r.status}`;
});
await check('100-concurrent', async () => {
  const as = await Promise.all(
    Array.from({ length: 100 }, (_, i) => call26(url, 'tools/call', tool('test_simple_text'), { id: `c${i}` })),
  );
  as.forEach((a, i) => eq(a.msg?.id, `c${i}`, 'id'));
});
done();
