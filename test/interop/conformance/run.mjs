// The official conformance suite, directly and through a proxy in one run, compared check by check:
//   PROXY='./sidecar.sh {UPSTREAM} {PORT}' node conformance/run.mjs [cell ...]
// A cell is one upstream at one specification version; without names, all of them run. It is a loss when a check that
// passes directly does not pass through the proxy, or one fails through it that does not fail directly. Exits 1 on a
// loss, and when a scenario passes fewer checks directly than conformance/baseline says: then the comparison is worth
// less than it was. SAVE=1 rewrites the baseline from the direct run.
// conformance/cannot.json lists, for cells in which the two sides speak different wires, the checks that cannot pass, with
// a reason that docs/conformance.md explains. One of them that does pass is a problem too, since then the list is old,
// unless its reason begins with "sometimes: ".
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startProxy, startUpstreams, stopAll } from '../lib/process.mjs';
import { testClient, testServer } from './suite.mjs';

const cells = [
  { name: 'go-sdk-2025-06-18', upstream: 'conformance-2025', spec: '2025-06-18' },
  { name: 'go-sdk-2025-11-25', upstream: 'conformance-2025', spec: '2025-11-25' },
  { name: 'go-sdk-2026-07-28', upstream: 'conformance', spec: '2026-07-28' },
  { name: 'tasks-2026-07-28', upstream: 'tasks', spec: 'tasks' },
  { name: 'everything-2025-06-18', upstream: 'everything', spec: '2025-06-18' },
  { name: 'everything-2025-11-25', upstream: 'everything', spec: '2025-11-25' },
  // The same server on the other wire: what passes directly on its own wire is held against what passes translated.
  { name: 'stateless-at-legacy', upstream: 'conformance', through: 'conformance-2025', spec: '2026-07-28' },
  { name: 'legacy-at-stateless', upstream: 'conformance-2025', through: 'conformance', spec: '2025-11-25' },
  // Two proxies in a row.
  { name: 'twice-2025-11-25', upstream: 'conformance-2025', spec: '2025-11-25', twice: true },
  { name: 'twice-2026-07-28', upstream: 'conformance', spec: '2026-07-28', twice: true },
  { name: 'client-2025-11-25', spec: '2025-11-25' },
  { name: 'client-2026-07-28', spec: '2026-07-28' },
];

const here = import.meta.dirname;
const cannot = JSON.parse(readFileSync(path.join(here, 'cannot.json'), 'utf8'));
const proxyLine = process.env.PROXY;
const scratch = mkdtempSync(path.join(tmpdir(), 'conformance-client-'));
process.on('exit', () => rmSync(scratch, { recursive: true, force: true }));

/** A command for the suite that runs client.mjs with a PROXY of its own, or none. */
function clientCommand(name, proxy) {
  const file = path.join(scratch, name);
  const quoted = `'${proxy.replaceAll("'", `'\\''`)}'`;
  writeFileSync(
    file,
    `#!/bin/sh\nPROXY=${quoted} exec '${process.execPath}' '${path.join(here, 'client.mjs')}' "$@"\n`,
  );
  chmodSync(file, 0o755);
  return file;
}

const sum = (map) => [...map.values()].reduce((n, c) => n + c, 0);
const total = (found, key) => [...found.values()].reduce((n, s) => n + sum(s[key]), 0);
const nothing = { passed: new Map(), failed: new Map(), why: 'the scenario did not run' };

/** The checks that through lost, as lines, but for those that cannot pass; and those of them that did. */
function losses(name, direct, through) {
  const lost = [];
  const known = new Map(Object.entries(cannot[name] ?? {}));
  for (const [scenario, d] of direct) {
    const t = through.get(scenario) ?? nothing;
    const ids = new Set([...d.passed.keys(), ...t.failed.keys()]);
    for (const id of ids) {
      const fewer = (t.passed.get(id) ?? 0) < (d.passed.get(id) ?? 0);
      const worse = (t.failed.get(id) ?? 0) > (d.failed.get(id) ?? 0);
      if (!fewer && !worse) continue;
      if (!known.delete(`${scenario}/${id}`)) lost.push(`${scenario}/${id}: ${t.why.replace(/\s+/g, ' ').slice(0, 300)}`);
    }
  }
  for (const [k, why] of known) if (!why.startsWith('sometimes: ')) lost.push(`${k}: passes, though cannot.json says that it cannot`);
  return lost;
}

/** What the direct run passed less of than the baseline says, as lines; with SAVE=1 writes the baseline instead. */
function belowBaseline(name, direct) {
  const file = path.join(here, 'baseline', `${name}.json`);
  const got = Object.fromEntries([...direct].sort().map(([scenario, s]) => [scenario, sum(s.passed)]));
  if (process.env.SAVE) writeFileSync(file, JSON.stringify(got, null, 2) + '\n');
  if (!existsSync(file)) return [`no baseline; SAVE=1 writes ${file}`];
  return Object.entries(JSON.parse(readFileSync(file, 'utf8')))
    .filter(([scenario, want]) => (got[scenario] ?? 0) < want)
    .map(([scenario, want]) => `${scenario}: ${got[scenario] ?? 0} checks pass directly, the baseline has ${want}`);
}

/** The two runs of a cell, one after the other: some scenarios change the upstream that both share. */
async function bothWays(cell) {
  if (!cell.upstream) {
    const direct = await testClient(clientCommand(`${cell.name}-direct`, ''), cell.spec);
    return [direct, await testClient(clientCommand(`${cell.name}-through`, proxyLine), cell.spec)];
  }
  const direct = await testServer(urls[cell.upstream], cell.spec);
  return [direct, await testServer((cell.twice ? twice : proxies)[cell.through ?? cell.upstream], cell.spec)];
}

if (!proxyLine) {
  console.error("usage: PROXY='command with {UPSTREAM} and {PORT}' node conformance/run.mjs [cell ...]");
  process.exit(2);
}
const named = process.argv.slice(2);
const chosen = cells.filter((c) => !named.length || named.includes(c.name));
const upstreams = [...new Set(chosen.flatMap((c) => [c.upstream, c.through]).filter(Boolean))];
const urls = await startUpstreams(upstreams);
const proxies = {};
for (const u of upstreams) proxies[u] = (await startProxy(proxyLine, urls[u])).url;
const twice = {};
for (const c of chosen.filter((c) => c.twice)) twice[c.upstream] = (await startProxy(proxyLine, proxies[c.upstream])).url;

// The tasks scenarios mostly wait, so they run beside the others.
const waiting = chosen.filter((c) => c.spec === 'tasks').map(async (c) => [c.name, await bothWays(c)]);
const found = new Map();
for (const c of chosen.filter((c) => c.spec !== 'tasks')) found.set(c.name, await bothWays(c));
for (const [name, both] of await Promise.all(waiting)) found.set(name, both);

const problems = [];
let passed = 0;
let lost = 0;
console.log('                         scenarios      checks passed        checks failed');
console.log('cell                                  direct   through     direct   through   lost');
for (const { name } of chosen) {
  const [direct, through] = found.get(name);
  const l = losses(name, direct, through);
  const row = [direct.size, total(direct, 'passed'), total(through, 'passed'), total(direct, 'failed')];
  const cols = [...row, total(through, 'failed'), l.length].map((n, i) =>
    String(n).padStart([10, 10, 10, 11, 10, 7][i]),
  );
  console.log(name.padEnd(24) + cols.join(''));
  passed += total(through, 'passed');
  lost += l.length;
  for (const p of l) problems.push(`${name}: lost ${p}`);
  for (const p of belowBaseline(name, direct)) problems.push(`${name}: ${p}`);
}
for (const p of problems) console.log(p);
console.log(`conformance: ${passed} passed, ${problems.length} failed (${lost} lost through the proxy)`);
await stopAll();
process.exit(problems.length ? 1 : 0);
