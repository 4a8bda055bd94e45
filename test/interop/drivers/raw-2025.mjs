// 2025-era sessions over bare HTTP. Upstream: go-sdk v1.8.0 conformance server with -stateless=false.
import { send, Session, answer, V25 } from '../lib/raw.mjs';
import { url, P, check, strict, assert, eq, until, sleep, skip, done } from '../lib/check.mjs';
const tool = (name, args = {}, extra = {}) => ({ name: P + name, arguments: args, ...extra });
await check('initialize-versions', async () => {
  for (const v of ['2025-11-25', '2025-06-18', '2025-03-26']) {
    const s = await new Session(url, { version: v }).open();
    eq(s.negotiated, v, 'negotiated');
    const a = await s.call('tools/call', tool('test_simple_text'));
    assert(a.msg.result.content[0].text.includes('simple text'));
    await s.close();
  }
});
await check('initialize-future-version', async () => {
  const s = new Session(url, { version: '2031-01-01' });
  await s.open();
  assert(/^20(24|25)-/.test(s.negotiated), s.negotiated);
  await s.close();
  return s.negotiated;
});
const s = await new Session(url).open().catch((e) => {
  console.log(`open: fail ${e.message}`);
  process.exit(1);
});
await check('session-id-visible-ascii', async () => {
  assert(s.sid && /^[\x21-\x7e]+$/.test(s.sid), `session id ${s.sid}`);
});
await check('unknown-session-404', async () => {
  const r = await send(url, {
    headers: { 'mcp-session-id': 'no-such-session', 'mcp-protocol-version': V25 },
    body: { jsonrpc: '2.0', id: 1, method: 'tools/list' },
  });
  await r.text();
  eq(r.status, 404, 'HTTP status');
});
await strict('missing-session-400', async () => {
  const r = await send(url, {
    headers: { 'mcp-protocol-version': V25 },
    body: { jsonrpc: '2.0', id: 1, method: 'tools/list' },
  });
  await r.text();
  assert(r.status === 400 || r.status === 404, `HTTP ${r.status}`);
});
await check('bad-version-header-400', async () => {
  const r = await send(url, {
    headers: { ...s.h(), 'mcp-protocol-version': '1999-01-01' },
    body: { jsonrpc: '2.0', id: 1, method: 'tools/list' },
  });
  await r.text();
  eq(r.status, 400, 'HTTP status');
});
await check('notification-202', async () => eq(await s.notify('notifications/roots/list_changed'), 202, 'HTTP status'));
await check('get-stream', async () => {
  const r = await s.stream();
  eq(r.status, 200, 'HTTP status');
  eq(r.type, 'text/event-stream', 'content type');
  r.destroy();
});
await check('unknown-method', async () => {
  const a = await s.call('acme/no-such-method', {});
  if (a.msg?.error) {
    eq(a.msg.error.code, -32601, 'code');
    return '-32601';
  }
  assert(a.status >= 400 && a.status < 500, `HTTP ${a.status} ${a.raw.slice(0, 150)}`);
  return `HTTP ${a.status} ${a.raw.trim().slice(0, 60)}`;
});
await check('ids-echoed', async () => {
  for (const id of [0, 7, 2147483648, 'abc', 'ünï-✓']) {
    const a = await s.call('tools/call', tool('test_simple_text'), { id });
    eq(a.msg?.id, id, 'id');
  }
});
await check('sampling-on-post-stream', async () => {
  let req;
  const a = await s.call('tools/call', tool('test_sampling', { prompt: 'x' }), {
    id: 's1',
    onMessage: async (m) => {
      if (m.method === 'sampling/createMessage') {
        req = m;
        const st = await s.reply(m.id, {
          role: 'assistant',
          model: 'stub',
          stopReason: 'endTurn',
          content: { type: 'text', text: 'raw-sample' },
        });
        eq(st, 202, 'HTTP status of the reply');
      }
    },
  });
  assert(req, 'no sampling request on the POST stream');
  assert(JSON.stringify(a.msg.result).includes('raw-sample'));
});
await check('elicitation-decline', async () => {
  const a = await s.call('tools/call', tool('test_elicitation', { message: 'm' }), {
    id: 'e1',
    onMessage: async (m) => {
      if (m.method === 'elicitation/create') await s.reply(m.id, { action: 'decline' });
    },
  });
  assert(/decline/i.test(JSON.stringify(a.msg.result)), JSON.stringify(a.msg).slice(0, 200));
});
await check('sampling-error-reply', async () => {
  const a = await s.call('tools/call', tool('test_sampling', { prompt: 'x' }), {
    id: 's2',
    onMessage: async (m) => {
      if (m.method === 'sampling/createMessage') {
        const r = await send(url, {
          headers: s.h(),
          body: {
            jsonrpc: '2.0',
            id: m.id,
            error: { code: -1, message: 'user rejected sampling', data: { why: 'driver' } },
          },
        });
        await r.text();
      }
    },
  });
  assert(a.msg.result?.isError || a.msg.error, 'the error was swallowed');
  assert(/rejected/.test(JSON.stringify(a.msg)), JSON.stringify(a.msg).slice(0, 200));
});
await check('two-sessions-own-requests', async () => {
  const o = await new Session(url).open();
  const go = (x, tag) =>
    x.call('tools/call', tool('test_sampling', { prompt: tag }), {
      id: 'same-id',
      onMessage: async (m) => {
        if (m.method === 'sampling/createMessage') {
          const p = JSON.stringify(m.params);
          assert(p.includes(tag), `session ${tag} was asked ${p.slice(0, 120)}`);
          await x.reply(m.id, { role: 'assistant', model: 'stub', content: { type: 'text', text: `for-${tag}` } });
        }
      },
    });
  const [a, b] = await Promise.all([go(s, 'alpha'), go(o, 'beta')]);
  assert(JSON.stringify(a.msg).includes('for-alpha') && JSON.stringify(b.msg).includes('for-beta'), 'answers crossed');
  await o.close();
});
await check(
  'subscribe-updates',
  async () => {
    const g = await s.stream();
    const got = [];
    (async () => {
      for await (const e of g.events) if (e.data) got.push(JSON.parse(e.data));
    })().catch(() => {});
    const a = await s.call('resources/subscribe', { uri: 'test://watched-resource' });
    assert(a.msg.result, JSON.stringify(a.msg));
    await until(
      () =>
        got.some((m) => m.method === 'notifications/resources/updated' && m.params.uri === 'test://watched-resource'),
      9000,
      'resources/updated on the GET stream',
    );
    await s.call('resources/unsubscribe', { uri: 'test://watched-resource' });
    await sleep(500);
    const n = got.length;
    await sleep(4000);
    const later = got.slice(n).filter((m) => m.method === 'notifications/resources/updated');
    g.destroy();
    eq(later.length, 0, 'updates after unsubscribe');
  },
  25000,
);
await check('cancelled-notification', async () => {
  const r = await s.start('tools/call', tool('test_tool_with_progress'), { id: 'kill-me' });
  await sleep(30);
  eq(await s.notify('notifications/cancelled', { requestId: 'kill-me', reason: 'driver' }), 202, 'HTTP status');
  await Promise.race([r.text().catch(() => ''), sleep(3000)]);
  r.destroy();
  const a = await s.call('tools/call', tool('test_simple_text'));
  assert(a.msg.result, 'session dead after cancel');
});
await check('delete-then-404', async () => {
  const st = await s.close();
  if (st === 405) skip('DELETE not supported');
  assert(st >= 200 && st < 300, `DELETE answered ${st}`);
  const r = await s.start('tools/list');
  await r.text();
  eq(r.status, 404, 'HTTP status after DELETE');
});
await strict('origin-rejected', async () => {
  const r = await send(url, {
    headers: { origin: 'http://evil.example.com' },
    body: {
      jsonrpc: '2.0',
      id: 1,
      method: 'initialize',
      params: { protocolVersion: V25, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
    },
  });
  await r.text();
  eq(r.status, 403, 'HTTP status');
});
done();
