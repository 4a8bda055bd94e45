// Bare HTTP/1.1 + SSE access to an MCP endpoint: no SDK, nothing normalised on the way.
import http from 'node:http';
export const V26 = '2026-07-28',
  V25 = '2025-11-25';
const b64 = (s) => `=?base64?${Buffer.from(s, 'utf8').toString('base64')}?=`;
const plain = (s) =>
  /^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(s) && !(s.startsWith('=?base64?') && s.endsWith('?='));
export const headerValue = (s) => (plain(s) ? s : b64(s));
export function meta26(extra = {}, caps = {}) {
  return {
    'io.modelcontextprotocol/protocolVersion': V26,
    'io.modelcontextprotocol/clientInfo': { name: 'interop-raw', version: '1.0.0' },
    'io.modelcontextprotocol/clientCapabilities': caps,
    ...extra,
  };
}
// send: body is a string or Buffer (sent as is) or an object. Resolves when headers arrive.
// The result has .status .headers .text() .events (async iterable of {id,event,data,retry}) .destroy()
export function send(url, { method = 'POST', headers = {}, body, agent, timeout = 60000 } = {}) {
  const u = new URL(url);
  const payload =
    body === undefined
      ? undefined
      : Buffer.isBuffer(body)
        ? body
        : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  const h = {
    accept: method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream',
    ...(payload ? { 'content-type': 'application/json', 'content-length': payload.length } : {}),
    ...headers,
  };
  for (const k of Object.keys(h)) if (h[k] === undefined || h[k] === null) delete h[k];
  let req; // the promise carries it, so that a caller can abort before the headers come
  const p = new Promise((resolve, reject) => {
    req = http.request(
      { host: u.hostname, port: u.port, path: u.pathname + u.search, method, headers: h, agent },
      (res) => {
        const r = {
          status: res.statusCode,
          headers: res.headers,
          res,
          req,
          type: (res.headers['content-type'] ?? '').split(';')[0].trim(),
        };
        r.destroy = () => req.destroy();
        r.buffer = async () => {
          const c = [];
          for await (const d of res) c.push(d);
          return Buffer.concat(c);
        };
        r.text = async () => (await r.buffer()).toString('utf8');
        r.events = sse(res);
        resolve(r);
      },
    );
    req.on('error', reject);
    req.setTimeout(timeout, () => req.destroy(new Error(`socket idle for ${timeout} ms`)));
    req.end(payload);
  });
  return Object.assign(p, { req });
}
async function* sse(res) {
  let buf = '',
    ev = {};
  const dec = new TextDecoder();
  for await (const chunk of res) {
    buf += dec.decode(chunk, { stream: true });
    let i;
    while ((i = buf.search(/\r\n|\n|\r/)) >= 0) {
      if (buf[i] === '\r' && i === buf.length - 1) break;
      const line = buf.slice(0, i);
      buf = buf.slice(i + (buf.startsWith('\r\n', i) ? 2 : 1));
      if (line === '') {
        if (Object.keys(ev).length) yield ev;
        ev = {};
        continue;
      }
      if (line.startsWith(':')) continue;
      const c = line.indexOf(':');
      const f = c < 0 ? line : line.slice(0, c);
      let v = c < 0 ? '' : line.slice(c + 1);
      if (v.startsWith(' ')) v = v.slice(1);
      if (f === 'data') ev.data = ev.data === undefined ? v : ev.data + '\n' + v;
      else ev[f] = v;
    }
  }
}
// Reads a JSON-RPC answer from either a JSON body or an SSE stream. Returns {msg, raw, others, status, headers, ids}.
export async function answer(r, id, onMessage) {
  if (r.type === 'text/event-stream') {
    const others = [],
      ids = [];
    for await (const e of r.events) {
      if (e.id !== undefined) ids.push(e.id);
      if (!e.data) continue;
      const m = JSON.parse(e.data);
      if (('result' in m || 'error' in m) && !m.method) {
        return { msg: m, raw: e.data, others, ids, status: r.status, headers: r.headers, sse: true };
      }
      others.push(m);
      if (onMessage) await onMessage(m, e);
    }
    return { msg: undefined, raw: '', others, ids, status: r.status, headers: r.headers, sse: true };
  }
  const raw = await r.text();
  let msg;
  try {
    msg = raw ? JSON.parse(raw) : undefined;
  } catch {
    /* not JSON */
  }
  return { msg, raw, others: [], ids: [], status: r.status, headers: r.headers, sse: false };
}
// ---- 2025-era session
export class Session {
  constructor(
    url,
    { version = V25, caps = { sampling: {}, elicitation: {}, roots: { listChanged: true } }, agent } = {},
  ) {
    this.url = url;
    this.version = version;
    this.caps = caps;
    this.n = 0;
    this.agent = agent;
  }
  h(extra) {
    return {
      ...(this.sid ? { 'mcp-session-id': this.sid } : {}),
      ...(this.negotiated ? { 'mcp-protocol-version': this.negotiated } : {}),
      ...extra,
    };
  }
  async open() {
    const r = await send(this.url, {
      agent: this.agent,
      body: {
        jsonrpc: '2.0',
        id: 'init-0',
        method: 'initialize',
        params: {
          protocolVersion: this.version,
          capabilities: this.caps,
          clientInfo: { name: 'interop-raw', version: '1.0.0' },
        },
      },
    });
    const a = await answer(r, 'init-0');
    if (!a.msg?.result) throw new Error(`initialize: HTTP ${a.status} ${a.raw.slice(0, 200)}`);
    this.sid = r.headers['mcp-session-id'];
    this.negotiated = a.msg.result.protocolVersion;
    this.init = a.msg.result;
    const n = await send(this.url, {
      agent: this.agent,
      headers: this.h(),
      body: { jsonrpc: '2.0', method: 'notifications/initialized' },
    });
    await n.text();
    if (n.status !== 202 && n.status !== 200) throw new Error(`notifications/initialized: HTTP ${n.status}`);
    return this;
  }
  // Starts a request; resolves to the HTTP response (headers in).
  start(method, params, { id = ++this.n, raw, headers } = {}) {
    return send(this.url, {
      agent: this.agent,
      headers: this.h(headers),
      body: raw ?? { jsonrpc: '2.0', id, method, ...(params === undefined ? {} : { params }) },
    });
  }
  // Runs a request to its answer. onMessage sees notifications and server requests that come first.
  async call(method, params, o = {}) {
    const id = o.id ?? ++this.n;
    const r = await this.start(method, params, { ...o, id });
    return answer(r, id, o.onMessage);
  }
  async notify(method, params) {
    const r = await send(this.url, {
      agent: this.agent,
      headers: this.h(),
      body: { jsonrpc: '2.0', method, ...(params ? { params } : {}) },
    });
    await r.text();
    return r.status;
  }
  async reply(id, result) {
    const r = await send(this.url, { agent: this.agent, headers: this.h(), body: { jsonrpc: '2.0', id, result } });
    await r.text();
    return r.status;
  }
  stream(headers) {
    return send(this.url, { method: 'GET', agent: this.agent, headers: this.h(headers) });
  }
  async close() {
    const r = await send(this.url, { method: 'DELETE', agent: this.agent, headers: this.h() });
    await r.text();
    return r.status;
  }
}
// ---- 2026-07-28 single request. Options: caps, meta (extra _meta keys), headers (override; null removes), raw body.
export function start26(url, method, params = {}, { id = 1, caps = {}, meta = {}, headers = {}, raw, agent } = {}) {
  const name = params.name ?? params.uri;
  const h = {
    'mcp-protocol-version': V26,
    'mcp-method': method,
    ...(name !== undefined && /^(tools\/call|prompts\/get|resources\/read)$/.test(method)
      ? { 'mcp-name': headerValue(String(name)) }
      : {}),
    ...(params.taskId !== undefined && method.startsWith('tasks/')
      ? { 'mcp-name': headerValue(String(params.taskId)) }
      : {}),
    ...headers,
  };
  return send(url, {
    agent,
    headers: h,
    body: raw ?? {
      jsonrpc: '2.0',
      id,
      method,
      params: { ...params, _meta: { ...meta26(meta, caps), ...(params._meta ?? {}) } },
    },
  });
}
export async function call26(url, method, params, o = {}) {
  return answer(await start26(url, method, params, o), o.id ?? 1, o.onMessage);
}
