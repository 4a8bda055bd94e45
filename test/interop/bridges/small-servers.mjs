// Small real servers behind an HTTP bridge: names what is there and calls it. Give the endpoint of any of
// server-filesystem, server-memory, server-sequential-thinking or bridges/fastmcp-server.mjs (see start.mjs).
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { url, P, check, assert, eq, sleep, skip, done } from '../lib/check.mjs';
let c, names;
await check('connect', async () => {
  const x = new Client({ name: 'interop-small', version: '1.0.0' }, { capabilities: {} });
  await x.connect(new StreamableHTTPClientTransport(new URL(url)));
  c = x;
  names = (await c.listTools()).tools.map((t) => t.name);
  return `${c.getServerVersion()?.name}: ${names.length} tools`;
});
if (!c) done();
const has = (n) => names.includes(P + n),
  call = (name, args = {}, o) => c.callTool({ name: P + name, arguments: args }, undefined, o),
  txt = (r) => r.content.map((x) => x.text ?? '').join('\n');
const dir = process.env.FS_DIR ?? '/tmp';
await check('filesystem', async () => {
  if (!has('write_file')) skip('not this server');
  const f = `${dir}/interop-${process.pid}.txt`;
  const body = 'línea 1\n行 2\n🚀';
  const w = await call('write_file', { path: f, content: body });
  assert(!w.isError, txt(w));
  eq(txt(await call('read_text_file', { path: f })), body, 'file text');
  assert(/interop-/.test(txt(await call('list_directory', { path: dir }))));
  const outside = await call('read_text_file', { path: '/etc/hostname' }).catch((e) => ({ isError: true }));
  assert(outside.isError, 'read outside the allowed folder');
});
await check('memory', async () => {
  if (!has('create_entities')) skip('not this server');
  const n = `ent-${Date.now()}`;
  await call('create_entities', { entities: [{ name: n, entityType: 'тест', observations: ['o1', 'é'] }] });
  assert(txt(await call('search_nodes', { query: n })).includes('тест'));
  await call('delete_entities', { entityNames: [n] });
});
await check('sequential-thinking', async () => {
  if (!has('sequentialthinking')) skip('not this server');
  for (let i = 1; i <= 3; i++) {
    const r = await call('sequentialthinking', {
      thought: `t${i}`,
      nextThoughtNeeded: i < 3,
      thoughtNumber: i,
      totalThoughts: 3,
    });
    assert(!r.isError, txt(r));
  }
});
await check('fastmcp', async () => {
  if (!has('trigger-long-running-operation') || !/fastmcp/.test(txt(await call('echo').catch(() => ({ content: [] })))))
    skip('not this server');
  const p = [];
  const r = await call('trigger-long-running-operation', {}, { onprogress: (x) => p.push(x.progress) });
  await sleep(100);
  eq(p, [1, 2, 3], 'progress');
  assert(/completed/.test(txt(r)));
});
await check('close', () => c.close());
done();
