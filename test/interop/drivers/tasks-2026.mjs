// The io.modelcontextprotocol/tasks extension (SEP-2663). Upstream: upstreams/tasks-server.mjs
import { call26, start26 } from '../lib/raw.mjs';
import { url, P, check, assert, eq, until, sleep, done } from '../lib/check.mjs';
const caps = { elicitation: { form: {} }, extensions: { 'io.modelcontextprotocol/tasks': {} } };
const rpc = async (method, params, o = {}) => {
  const a = await call26(url, method, params, { caps, ...o });
  if (a.msg?.error)
    throw Object.assign(new Error(`${a.msg.error.code} ${a.msg.error.message}`), {
      code: a.msg.error.code,
      data: a.msg.error.data,
      status: a.status,
    });
  if (!a.msg) throw new Error(`HTTP ${a.status} ${a.raw.slice(0, 150)}`);
  return a.msg.result;
};
const create = async (name, args = {}) => {
  const r = await rpc('tools/call', { name: P + name, arguments: args });
  eq(r.resultType, 'task', 'resultType');
  assert(r.taskId, 'taskId');
  return r;
};
const get = (taskId) => rpc('tasks/get', { taskId });
const settle = (id) =>
  until(
    async () => {
      const t = await get(id);
      return ['completed', 'failed', 'cancelled'].includes(t.status) && t;
    },
    8000,
    'a terminal status',
  );
const fails = async (p, code) => {
  try {
    await p;
  } catch (e) {
    eq(e.code, code, 'code');
    return e;
  }
  throw new Error('no error');
};
await check('extension-advertised', async () => {
  const d = await rpc('server/discover', {});
  assert(d.capabilities.extensions?.['io.modelcontextprotocol/tasks'], JSON.stringify(d.capabilities));
});
await check('create-and-complete', async () => {
  const t = await create('slow_compute', { seconds: 1, label: 'L1' });
  assert(t.ttlMs === null || Number.isInteger(t.ttlMs), 'ttlMs');
  eq((await get(t.taskId)).status, 'working', 'status');
  const f = await settle(t.taskId);
  eq(f.status, 'completed', 'status');
  assert(f.result.content[0].text.includes('L1'));
});
await check('get-right-after-create', async () => {
  for (let i = 0; i < 20; i++) {
    const t = await create('slow_compute', { seconds: 5, label: 'r' });
    eq((await get(t.taskId)).taskId, t.taskId, 'taskId');
    await rpc('tasks/cancel', { taskId: t.taskId });
  }
});
await check('cancel', async () => {
  const t = await create('slow_compute', { seconds: 30 });
  const r = await rpc('tasks/cancel', { taskId: t.taskId });
  eq(r.resultType, 'complete', 'resultType');
  eq((await settle(t.taskId)).status, 'cancelled', 'status');
});
await check('tool-error-completed', async () => {
  const f = await settle((await create('failing_job')).taskId);
  eq(f.status, 'completed', 'status');
  eq(f.result.isError, true, 'isError');
});
await check('protocol-error-failed', async () => {
  const f = await settle((await create('protocol_error_job')).taskId);
  eq(f.status, 'failed', 'status');
  eq(f.error.code, -32603, 'error code');
});
await check('input-required-update', async () => {
  const t = await create('confirm_delete', { filename: 'ф.txt' });
  const w = await until(
    async () => {
      const x = await get(t.taskId);
      return x.status === 'input_required' && x;
    },
    5000,
    'input_required',
  );
  const key = Object.keys(w.inputRequests)[0];
  assert(w.inputRequests[key].params.message.includes('ф.txt'));
  eq(
    (
      await rpc('tasks/update', {
        taskId: t.taskId,
        inputResponses: { [key]: { action: 'accept', content: { confirm: true } } },
      })
    ).resultType,
    'complete',
    'resultType',
  );
  const f = await settle(t.taskId);
  assert(f.result.content[0].text.includes('ф.txt'));
});
await check('partial-update', async () => {
  const t = await create('multi_input');
  const w = await until(
    async () => {
      const x = await get(t.taskId);
      return x.status === 'input_required' && x;
    },
    5000,
    'input_required',
  );
  const [a, b] = Object.keys(w.inputRequests);
  await rpc('tasks/update', {
    taskId: t.taskId,
    inputResponses: { [a]: { action: 'accept', content: { name: 'n' } } },
  });
  eq(Object.keys((await get(t.taskId)).inputRequests), [b], 'still open');
  await rpc('tasks/update', { taskId: t.taskId, inputResponses: { [b]: { action: 'decline' } } });
  eq((await settle(t.taskId)).status, 'completed', 'status');
});
await check('mrtr-then-task', async () => {
  const r = await rpc('tools/call', { name: P + 'test_tool_with_task', arguments: {} });
  eq(r.resultType, 'input_required', 'resultType');
  const k = Object.keys(r.inputRequests)[0];
  const t = await rpc('tools/call', {
    name: P + 'test_tool_with_task',
    arguments: {},
    inputResponses: { [k]: { action: 'accept', content: { name: 'Alice' } } },
    requestState: r.requestState,
  });
  eq(t.resultType, 'task', 'resultType');
  assert((await settle(t.taskId)).result.content[0].text.includes('Alice'));
});
await check('not-declared-no-task', async () => {
  const r = await rpc('tools/call', { name: P + 'slow_compute', arguments: { seconds: 0 } }, { caps: {} });
  eq(r.resultType, 'complete', 'resultType');
});
await check('not-declared-required', async () => {
  const e = await fails(rpc('tools/call', { name: P + 'failing_job', arguments: {} }, { caps: {} }), -32021);
  assert(e.data?.requiredCapabilities?.extensions, JSON.stringify(e.data));
});
await check('unknown-task', async () => {
  await fails(get('no-such-task'), -32602);
});
await check('name-header-mismatch', async () => {
  const t = await create('slow_compute', { seconds: 3 });
  const e = await fails(rpc('tasks/get', { taskId: t.taskId }, { headers: { 'mcp-name': 'other' } }), -32020);
  eq(e.status, 400, 'HTTP status');
  await rpc('tasks/cancel', { taskId: t.taskId });
});
await check('listen-task-status', async () => {
  const t = await create('slow_compute', { seconds: 1 });
  const r = await start26(url, 'subscriptions/listen', { notifications: { taskIds: [t.taskId] } }, { caps, id: 'tl' });
  eq(r.status, 200, 'HTTP status');
  const got = [];
  for await (const e of r.events) {
    if (!e.data) continue;
    got.push(JSON.parse(e.data));
    if (got.at(-1).params?.status === 'completed') break;
  }
  r.destroy();
  eq(got[0].params.notifications.taskIds, [t.taskId], 'acknowledged');
  eq(got.at(-1).method, 'notifications/tasks', 'method');
  eq(got.at(-1).params.taskId, t.taskId, 'taskId');
});
await check('20-at-once', async () => {
  const ts = await Promise.all(
    Array.from({ length: 20 }, (_, i) => create('slow_compute', { seconds: 0.5, label: `n${i}.` })),
  );
  const fs = await Promise.all(ts.map((t) => settle(t.taskId)));
  fs.forEach((f, i) => assert(f.result.content[0].text.includes(`n${i}.`), 'results crossed'));
});
done();
