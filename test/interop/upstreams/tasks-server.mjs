// A small stateless 2026-07-28 server with the io.modelcontextprotocol/tasks extension (SEP-2663).
// No public npm or Go server implements that extension, so this one exists to be put behind a proxy;
// it passes the official suite's tasks-* scenarios when run directly.   node tasks-server.mjs PORT
import http from 'node:http';
import { randomUUID } from 'node:crypto';
const PORT = Number(process.argv[2] ?? 4031),
  V = '2026-07-28',
  EXT = 'io.modelcontextprotocol/tasks';
const K = (k) => `io.modelcontextprotocol/${k}`;
const tasks = new Map(),
  listeners = new Set();
const tool = (name, properties = {}, required = []) => ({
  name,
  description: `${name} fixture`,
  inputSchema: { type: 'object', properties, required },
});
const TOOLS = [
  tool('greet', { name: { type: 'string' } }),
  tool('slow_compute', { seconds: { type: 'number' }, label: { type: 'string' } }),
  tool('failing_job'),
  tool('protocol_error_job'),
  tool('confirm_delete', { filename: { type: 'string' } }),
  tool('multi_input'),
  tool('test_tool_with_task'),
];
const text = (t, more) => ({ resultType: 'complete', content: [{ type: 'text', text: t }], ...more });
class Rpc extends Error {
  constructor(code, message, { http = 200, data } = {}) {
    super(message);
    Object.assign(this, { code, http, data });
  }
}
const missing = () =>
  new Rpc(-32021, 'Missing required client capability', {
    http: 400,
    data: { requiredCapabilities: { extensions: { [EXT]: {} } } },
  });
const view = (t) => {
  const { timer, answers, onDone, ...v } = t;
  return v;
};
function put(t, patch) {
  Object.assign(t, patch, { lastUpdatedAt: new Date().toISOString() });
  for (const l of listeners)
    if (l.taskIds.includes(t.taskId))
      l.write({
        jsonrpc: '2.0',
        method: 'notifications/tasks',
        params: { ...view(t), _meta: { [K('subscriptionId')]: l.id } },
      });
}
function create(run) {
  const now = new Date().toISOString();
  const t = {
    taskId: randomUUID(),
    status: 'working',
    statusMessage: 'started',
    createdAt: now,
    lastUpdatedAt: now,
    ttlMs: 300000,
    pollIntervalMs: 100,
  };
  tasks.set(t.taskId, t);
  const seed = { resultType: 'task', ...view(t) };
  run(t);
  return seed;
}
const finish = (t, result) => {
  if (t.status === 'working' || t.status === 'input_required') {
    delete t.inputRequests;
    put(t, { status: 'completed', result });
  }
};
function ask(t, requests, onDone) {
  t.answers = {};
  t.onDone = onDone;
  put(t, { status: 'input_required', inputRequests: requests });
}
const elicit = (message, properties) => ({
  method: 'elicitation/create',
  params: { mode: 'form', message, requestedSchema: { type: 'object', properties, required: Object.keys(properties) } },
});
function callTool(p, caps) {
  const a = p.arguments ?? {},
    can = caps.extensions?.[EXT] !== undefined;
  switch (p.name) {
    case 'greet':
      return text(`Hello, ${a.name}!`);
    case 'slow_compute': {
      const s = Number(a.seconds ?? 0),
        out = () => text(`computed ${a.label ?? ''} in ${s}s`);
      if (!can) return new Promise((r) => setTimeout(() => r(out()), Math.min(s, 5) * 1000));
      return create((t) => {
        t.timer = setTimeout(() => finish(t, out()), s * 1000);
      });
    }
    case 'failing_job':
      if (!can) throw missing();
      return create((t) => {
        t.timer = setTimeout(() => finish(t, text('the job failed', { isError: true })), 1000);
      });
    case 'protocol_error_job':
      if (!can) throw missing();
      return create((t) => {
        t.timer = setTimeout(() => put(t, { status: 'failed', error: { code: -32603, message: 'job crashed' } }), 300);
      });
    case 'confirm_delete':
      if (!can) throw missing();
      return create((t) =>
        setTimeout(
          () =>
            t.status === 'working' &&
            ask(
              t,
              { [`confirm-${randomUUID()}`]: elicit(`Delete ${a.filename}?`, { confirm: { type: 'boolean' } }) },
              (ans) => finish(t, text(`deleted ${a.filename}: ${JSON.stringify(Object.values(ans)[0])}`)),
            ),
          50,
        ),
      );
    case 'multi_input':
      if (!can) throw missing();
      return create((t) =>
        setTimeout(
          () =>
            t.status === 'working' &&
            ask(
              t,
              {
                [`a-${randomUUID()}`]: elicit('first', { name: { type: 'string' } }),
                [`b-${randomUUID()}`]: elicit('second', { name: { type: 'string' } }),
              },
              (ans) => finish(t, text(`got ${Object.keys(ans).length} answers`)),
            ),
          50,
        ),
      );
    case 'test_tool_with_task': {
      const ans = p.inputResponses?.user_name;
      if (!ans)
        return {
          resultType: 'input_required',
          inputRequests: { user_name: elicit('What is your name?', { name: { type: 'string' } }) },
          requestState: 'state-0',
        };
      if (!can) throw missing();
      return create((t) => {
        t.timer = setTimeout(() => finish(t, text(`Hello, ${ans.content?.name}!`)), 200);
      });
    }
    default:
      throw new Rpc(-32602, `Unknown tool: ${p.name}`);
  }
}
function need(p, caps) {
  if (caps.extensions?.[EXT] === undefined) throw missing();
  const t = tasks.get(p.taskId);
  if (!t) throw new Rpc(-32602, `Unknown task: ${p.taskId}`);
  return t;
}
async function dispatch(m, caps) {
  const p = m.params ?? {};
  switch (m.method) {
    case 'server/discover':
      return {
        resultType: 'complete',
        supportedVersions: [V],
        capabilities: { tools: {}, extensions: { [EXT]: {} } },
        instructions: 'tasks fixture',
        ttlMs: 0,
        cacheScope: 'public',
        _meta: { [K('serverInfo')]: { name: 'tasks-fixture', version: '1.0.0' } },
      };
    case 'tools/list':
      return { resultType: 'complete', tools: TOOLS, ttlMs: 60000, cacheScope: 'public' };
    case 'tools/call':
      return callTool(p, caps);
    case 'tasks/get':
      return { resultType: 'complete', ...view(need(p, caps)) };
    case 'tasks/update': {
      const t = need(p, caps);
      if (t.status === 'input_required') {
        for (const [k, v] of Object.entries(p.inputResponses ?? {}))
          if (t.inputRequests[k]) {
            t.answers[k] = v;
            delete t.inputRequests[k];
          }
        if (!Object.keys(t.inputRequests).length) {
          delete t.inputRequests;
          put(t, { status: 'working' });
          setTimeout(() => t.onDone(t.answers), 30);
        } else put(t, {});
      }
      return { resultType: 'complete' };
    }
    case 'tasks/cancel': {
      const t = need(p, caps);
      if (t.status === 'working' || t.status === 'input_required') {
        clearTimeout(t.timer);
        delete t.inputRequests;
        put(t, { status: 'cancelled' });
      }
      return { resultType: 'complete' };
    }
    default:
      throw new Rpc(-32601, `Method not found: ${m.method}`, { http: 404 });
  }
}
const unhex = (v) => {
  const m = /^=\?base64\?(.*)\?=$/.exec(v);
  return m ? Buffer.from(m[1], 'base64').toString('utf8') : v;
};
function validate(req, m) {
  const meta = m.params?._meta ?? {},
    hv = req.headers['mcp-protocol-version'],
    mv = meta[K('protocolVersion')];
  const bad = (why) => new Rpc(-32020, `HeaderMismatch: ${why}`, { http: 400 });
  if (!hv || !mv) throw bad('MCP-Protocol-Version header and _meta protocolVersion are required');
  if (hv !== mv) throw bad('protocol version header and body differ');
  if (hv !== V)
    throw new Rpc(-32022, `Unsupported protocol version ${hv}`, { http: 400, data: { supported: [V], requested: hv } });
  if (typeof meta[K('clientCapabilities')] !== 'object')
    throw new Rpc(-32602, '_meta clientCapabilities is required', { http: 400 });
  if ((req.headers['mcp-method'] ?? '').trim() !== m.method) throw bad('Mcp-Method');
  const want = {
    'tools/call': m.params.name,
    'prompts/get': m.params.name,
    'resources/read': m.params.uri,
    'tasks/get': m.params.taskId,
    'tasks/update': m.params.taskId,
    'tasks/cancel': m.params.taskId,
  }[m.method];
  const nm = req.headers['mcp-name'];
  if (want !== undefined && (nm === undefined ? !m.method.startsWith('tasks/') : unhex(nm.trim()) !== want))
    throw bad('Mcp-Name');
}
http
  .createServer(async (req, res) => {
    const host = (req.headers.host ?? '').replace(/:\d+$/, '');
    const origin = req.headers.origin;
    if (
      !['127.0.0.1', 'localhost', '[::1]'].includes(host) ||
      (origin && !/^https?:\/\/(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/.test(origin))
    ) {
      res.writeHead(403).end();
      return;
    }
    if (req.method !== 'POST') {
      res.writeHead(405, { allow: 'POST' }).end();
      return;
    }
    let body = '';
    for await (const c of req) body += c;
    let m;
    const json = (status, o) => {
      res.writeHead(status, { 'content-type': 'application/json' });
      res.end(JSON.stringify(o));
    };
    try {
      m = JSON.parse(body);
    } catch {
      return json(400, { jsonrpc: '2.0', error: { code: -32700, message: 'Parse error' } });
    }
    if (m.id === undefined) {
      res.writeHead(202).end();
      return;
    }
    try {
      validate(req, m);
      const caps = m.params._meta[K('clientCapabilities')];
      if (m.method === 'subscriptions/listen') {
        const f = m.params.notifications ?? {};
        const ids = f.taskIds;
        if (ids && caps.extensions?.[EXT] === undefined) throw missing();
        res.writeHead(200, {
          'content-type': 'text/event-stream',
          'cache-control': 'no-cache',
          'x-accel-buffering': 'no',
        });
        const l = {
          id: m.id,
          taskIds: (ids ?? []).filter((i) => tasks.has(i)),
          write: (o) => res.write(`event: message\ndata: ${JSON.stringify(o)}\n\n`),
        };
        l.write({
          jsonrpc: '2.0',
          method: 'notifications/subscriptions/acknowledged',
          params: { _meta: { [K('subscriptionId')]: m.id }, notifications: ids ? { taskIds: l.taskIds } : {} },
        });
        listeners.add(l);
        const ka = setInterval(() => res.write(': keep-alive\n\n'), 5000);
        res.on('close', () => {
          clearInterval(ka);
          listeners.delete(l);
        });
        return;
      }
      const result = await dispatch(m, caps);
      json(200, { jsonrpc: '2.0', id: m.id, result });
    } catch (e) {
      json(e.http ?? 500, {
        jsonrpc: '2.0',
        id: m.id ?? null,
        error: { code: e.code ?? -32603, message: e.message, ...(e.data ? { data: e.data } : {}) },
      });
    }
  })
  .listen(PORT, '127.0.0.1', () => console.log(`tasks fixture on http://127.0.0.1:${PORT}/mcp`));
