// Clients and servers made with four SDKs, each of one era alone, every client at every server:
//   PROXY='./sidecar.sh {UPSTREAM} {PORT}' node cells/run.mjs [client ...]     through a proxy, one for each server
//   node cells/run.mjs [client ...]                                            directly, where the eras are the same
// cannot.json lists what a peer cannot pass, with the reason, under "client", "at server" or "client at server", and under
// "client directly at server" what it cannot without a proxy; "*" is all of it. TRY=1 runs that too, and fails when one passes: then the list is old. EXPECT=n fails the run when fewer
// checks pass. Lines are "client at server/check: pass|fail|skip detail"; exits 1 if one failed.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { binaries, node22, root, run, startProxy, startUpstreams, stopAll } from '../lib/process.mjs';

const js = (file, ...args) => [node22, path.join(root, 'cells', file), ...args];
const go = (...args) => [path.join(binaries, 'cell-client'), ...args];
// Those that are mixed run at servers of the other era only, for want of time. Those that change nothing run beside others.
const clients = {
  ts1: { legacy: true, command: js('client.mjs', 'ts1') },
  'ts2-2025': { legacy: true, command: js('client.mjs', 'ts2-2025') },
  'mcpgo-2025': { legacy: true, command: go('-2025', 'mcpgo') },
  'gosdk-2025': { legacy: true, command: go('-2025', 'gosdk') },
  'inspector-2025': { legacy: true, mixed: true, beside: true, command: js('inspector.mjs', 'legacy') },
  'mcp-remote': { legacy: true, mixed: true, command: js('client.mjs', 'mcp-remote') },
  ts2: { command: js('client.mjs', 'ts2') },
  mcpgo: { command: go('mcpgo') },
  gosdk: { command: go('gosdk') },
  inspector: { mixed: true, beside: true, command: js('inspector.mjs', 'modern') },
};
const servers = {
  ts1: { legacy: true },
  'mcpgo-2025': { legacy: true },
  'gosdk-2025': { legacy: true },
  ts2: {},
  mcpgo: {},
  gosdk: {},
};
const cannot = JSON.parse(readFileSync(path.join(import.meta.dirname, 'cannot.json'), 'utf8'));
const cannotHere = (client, server) => ({
  ...cannot[client],
  ...cannot[`at ${server}`],
  ...cannot[`${client} at ${server}`],
  ...(!process.env.PROXY && cannot[`${client} directly at ${server}`]),
});

/** The servers that a client of that name is run at. */
const reachable = (client) =>
  Object.keys(servers).filter((s) => {
    const same = !servers[s].legacy === !clients[client].legacy;
    return process.env.PROXY ? !(same && clients[client].mixed) : same && !clients[client].mixed;
  });

/** Runs a client at every server that it can reach, and returns what came of each: [server, check, word, detail]. */
async function drive(name) {
  const at = reachable(name);
  if (!at.length) return [];
  const lists = Object.fromEntries(at.map((s) => [s, cannotHere(name, s)]));
  const skipped = process.env.TRY ? [] : at.filter((s) => lists[s]['*']);
  const targets = at.filter((s) => !skipped.includes(s)).map((s) => `${s}=${urls[`cell-${s}`]}`);
  const env = process.env.TRY ? {} : { CANNOT: JSON.stringify(lists) };
  const [program, ...args] = clients[name].command;
  const { code, out } = await run(program, [...args, ...targets], { env, limitMs: 300000, stderr: 'ignore' });
  const found = [...out.matchAll(/^([^/\s]+)\/(\S+): (pass|fail|skip) ?(.*)$/gm)].map((m) => m.slice(1));
  for (const s of skipped) found.push([s, '*', 'skip', lists[s]['*']]);
  if (code !== 0 && !found.some((f) => f[2] === 'fail')) found.push([at[0], 'exit', 'fail', `code ${code}`]);
  return process.env.TRY ? found.map((f) => tried(f, lists[f[0]])) : found;
}

/** What TRY=1 makes of a check: one that is listed must fail. */
function tried([server, check, word, detail], list) {
  const why = list[check] ?? list['*'];
  if (!why) return [server, check, word, detail];
  if (word !== 'pass') return [server, check, 'skip', `${why}: ${detail}`];
  return list['*']
    ? [server, check, 'skip', why]
    : [server, check, 'fail', 'it passes, though cannot.json says that it cannot'];
}

const named = process.argv.slice(2);
const unknown = named.filter((n) => !clients[n]);
if (unknown.length) {
  console.error(`unknown client ${unknown}; known: ${Object.keys(clients).join(' ')}`);
  process.exit(2);
}
const urls = await startUpstreams(Object.keys(servers).map((s) => `cell-${s}`));
if (process.env.PROXY) for (const u of Object.keys(urls)) urls[u] = (await startProxy(process.env.PROXY, urls[u])).url;

const total = { pass: 0, fail: 0, skip: 0 };
const table = [];
const chosen = named.length ? named : Object.keys(clients);
const beside = Object.fromEntries(chosen.filter((c) => clients[c].beside).map((c) => [c, drive(c)]));
for (const name of chosen) {
  const found = await (beside[name] ?? drive(name));
  for (const [server, check, word, detail] of found) {
    console.log(`${name} at ${server}/${check}: ${word} ${detail}`);
    total[word]++;
  }
  const of = (server, word) => found.filter((f) => f[0] === server && f[2] === word).length;
  const shown = (s) =>
    of(s, 'pass') + (of(s, 'fail') ? ` -${of(s, 'fail')}` : '') + (of(s, 'skip') ? ` (${of(s, 'skip')})` : '');
  table.push([name, ...Object.keys(servers).map((s) => (reachable(name).includes(s) ? shown(s) : ''))]);
}
console.log(
  '\nclient          ' +
    Object.keys(servers)
      .map((s) => s.padStart(12))
      .join(''),
);
for (const [name, ...cols] of table) console.log(name.padEnd(16) + cols.map((c) => c.padStart(12)).join(''));
console.log('passed, -failed, (skipped: see cannot.json)');
const missing = Math.max(0, Number(process.env.EXPECT ?? 0) - total.pass - total.fail);
if (missing) console.log(`${missing} checks did not run`);
console.log(`cells: ${total.pass} passed, ${total.fail + missing} failed`);
await stopAll();
process.exit(total.fail + missing ? 1 : 0);
