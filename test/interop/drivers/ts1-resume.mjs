// Resuming after a dropped SSE stream (2025-era, Last-Event-ID). Upstream: server-everything (it keeps an event store).
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as T from '@modelcontextprotocol/sdk/types.js';
import { Session } from '../lib/raw.mjs';
import { url, P, check, assert, eq, sleep, skip, done } from '../lib/check.mjs';
const lro = (duration, steps, token) => ({
  name: P + 'trigger-long-running-operation',
  arguments: { duration, steps },
  _meta: { progressToken: token },
});
// Reads events of a response until fn says stop; returns them.
async function take(r, fn) {
  const out = [];
  for await (const e of r.events) {
    out.push(e);
    if (fn(e, out)) break;
  }
  return out;
}
const payload = (evs) => evs.filter((e) => e.data).map((e) => JSON.parse(e.data));
await check('events-carry-ids', async () => {
  const s = await new Session(url).open();
  const r = await s.start('tools/call', lro(1, 3, 'ids'));
  eq(r.type, 'text/event-stream', 'content type');
  const evs = await take(r, (e) => e.data && 'result' in JSON.parse(e.data));
  const ids = evs.map((e) => e.id);
  assert(
    ids.every((i) => i !== undefined && i !== ''),
    `ids ${JSON.stringify(ids)}`,
  );
  eq(new Set(ids).size, ids.length, 'distinct ids');
  await s.close();
});
await check('resume-after-drop', async () => {
  const s = await new Session(url).open();
  const r = await s.start('tools/call', lro(3, 6, 'drop'), { id: 71 });
  let last;
  const first = await take(r, (e, all) => {
    last = e.id;
    return payload(all).filter((m) => m.method === 'notifications/progress').length >= 2;
  });
  r.destroy();
  assert(last, 'no event id before the drop');
  await sleep(700);
  const g = await s.stream({ 'last-event-id': last });
  eq(g.status, 200, 'GET with Last-Event-ID');
  const rest = await take(g, (e) => e.data && 'result' in JSON.parse(e.data));
  g.destroy();
  const prog = [...payload(first), ...payload(rest)]
    .filter((m) => m.method === 'notifications/progress')
    .map((m) => m.params.progress);
  const fin = payload(rest).at(-1);
  eq(fin.id, 71, 'id of the result');
  assert(/completed/.test(fin.result.content[0].text));
  eq(prog, [1, 2, 3, 4, 5, 6], 'progress over both streams');
  await s.close();
});
await check('resume-after-completion', async () => {
  const s = await new Session(url).open();
  const r = await s.start('tools/call', lro(1, 2, 'late'), { id: 'late-1' });
  let last;
  await take(r, (e) => {
    last = e.id;
    return e.data && JSON.parse(e.data).method === 'notifications/progress';
  });
  r.destroy();
  await sleep(2500);
  const g = await s.stream({ 'last-event-id': last });
  const rest = await take(g, (e) => e.data && 'result' in JSON.parse(e.data));
  g.destroy();
  eq(payload(rest).at(-1).id, 'late-1', 'id of the result');
  await s.close();
});
await check('sdk-resumption-token', async () => {
  const mk = () => new Client({ name: 'interop-resume', version: '1' }, { capabilities: {} });
  const a = mk();
  const ta = new StreamableHTTPClientTransport(new URL(url));
  await a.connect(ta);
  if (!ta.sessionId) skip('no session id');
  let token;
  const p = a
    .request(
      {
        method: 'tools/call',
        params: { name: P + 'trigger-long-running-operation', arguments: { duration: 3, steps: 6 } },
      },
      T.CallToolResultSchema,
      {
        resumptionToken: undefined,
        onresumptiontoken: (t) => {
          token = t;
        },
        onprogress: () => {},
      },
    )
    .catch((e) => e);
  await sleep(1300);
  assert(token, 'no resumption token seen');
  const sid = ta.sessionId,
    ver = ta.protocolVersion;
  await ta.close();
  await p;
  await sleep(300); // until the server knows that the first stream is gone: it refuses a second reader of it
  const b = mk();
  const tb = new StreamableHTTPClientTransport(new URL(url), { sessionId: sid });
  tb.setProtocolVersion?.(ver);
  await b.connect(tb);
  const r = await b.request(
    {
      method: 'tools/call',
      params: { name: P + 'trigger-long-running-operation', arguments: { duration: 3, steps: 6 } },
    },
    T.CallToolResultSchema,
    { resumptionToken: token, onresumptiontoken: () => {}, timeout: 15000 },
  );
  assert(/completed/.test(r.content[0].text));
  await b.close();
});
done();
