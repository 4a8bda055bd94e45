// Every driver against its upstream, directly or through a proxy:
//   node run-all.mjs                                                    directly
//   PROXY='./sidecar.sh {UPSTREAM} {PORT}' node run-all.mjs             through a proxy, one for each upstream
// PROXY_PATH (default /mcp) is the path on the proxy; DRIVERS=a,b picks some; STRICT=1 adds the checks that the spec asks
// for and the upstream itself fails; EXPECT=n fails the run when fewer checks pass. Lines are
// "driver/check: pass|fail|skip detail"; exits 1 if one failed.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { binaries, root, run, startProxy, startUpstreams, stopAll } from './lib/process.mjs';

const js = (file) => [process.execPath, path.join(root, file)];
const go = (...command) => [path.join(binaries, command[0]), ...command.slice(1)];
const folder = mkdtempSync(path.join(tmpdir(), 'interop-fs-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

const conformance = { UPSTREAM: 'conformance' };
// Those that are mixed speak another wire than their upstream, so they run through a proxy only.
const drivers = [
  { name: 'ts1-everything', upstream: 'everything', command: js('drivers/ts1-everything.mjs') },
  { name: 'ts2-everything', upstream: 'everything', command: js('drivers/ts2-everything.mjs'), mixed: true },
  { name: 'ts1-resume', upstream: 'resume', command: js('drivers/ts1-resume.mjs') },
  { name: 'raw-2025', upstream: 'conformance-2025', command: js('drivers/raw-2025.mjs') },
  { name: 'ts2-modern', upstream: 'conformance', command: js('drivers/ts2-modern.mjs') },
  { name: 'raw-2026', upstream: 'conformance', command: js('drivers/raw-2026.mjs') },
  { name: 'tasks-2026', upstream: 'tasks', command: js('drivers/tasks-2026.mjs') },
  { name: 'mcpgo-2025', upstream: 'conformance-2025', command: go('mcpgo-client', '-2025') },
  { name: 'mcpgo-2026', upstream: 'conformance', command: go('mcpgo-client') },
  { name: 'gosdk-2025', upstream: 'conformance-2025', command: go('gosdk-client', '-2025') },
  { name: 'gosdk-2026', upstream: 'conformance', command: go('gosdk-client') },
  { name: 'cli-2025', upstream: 'conformance-2025', command: js('bridges/cli-clients.mjs'), env: conformance },
  { name: 'cli-everything', upstream: 'everything', command: js('bridges/cli-clients.mjs') },
  {
    name: 'cli-2026',
    upstream: 'conformance',
    command: js('bridges/cli-clients.mjs'),
    env: { ...conformance, MODERN: '1' },
  },
  ...['filesystem', 'memory', 'thinking', 'fastmcp'].map((upstream) => ({
    name: `small-${upstream}`,
    upstream,
    command: js('bridges/small-servers.mjs'),
    env: { FS_DIR: folder },
  })),
];

/** Runs one driver, prints its lines, and resolves to how many checks passed, failed and were left out. */
async function drive({ name, command: [program, ...args], env }, url) {
  const { code, out } = await run(program, [...args, url], { env, limitMs: 400000, stderr: 'ignore' });
  const lines = out.trim().split('\n');
  for (const l of lines) console.log(`${name}/${l}`);
  const words = lines.map((l) => /^\S.*?: (pass|fail|skip)\b/.exec(l)?.[1]);
  const count = (word) => words.filter((w) => w === word).length;
  const row = { name, pass: count('pass'), fail: count('fail'), skip: count('skip') };
  if (code !== 0 && !row.fail) row.fail = 1; // it crashed, or was killed at its limit
  return row;
}

const wanted = process.env.DRIVERS?.split(',');
const chosen = drivers.filter((d) => (wanted?.includes(d.name) ?? true) && (process.env.PROXY || !d.mixed));
const upstreams = [...new Set(chosen.map((d) => d.upstream))];
const urls = await startUpstreams(upstreams, { FS_DIR: folder });
if (process.env.PROXY) for (const u of upstreams) urls[u] = (await startProxy(process.env.PROXY, urls[u])).url;

const rows = [];
for (const d of chosen) rows.push(await drive(d, urls[d.upstream]));

const sum = (key) => rows.reduce((n, r) => n + r[key], 0);
console.log('\ndriver            passed failed skipped');
for (const r of rows)
  console.log(r.name.padEnd(18) + String(r.pass).padStart(6) + String(r.fail).padStart(7) + String(r.skip).padStart(8));
const missing = Math.max(0, Number(process.env.EXPECT ?? 0) - sum('pass') - sum('fail'));
if (missing) console.log(`${missing} checks did not run`);
console.log(`interop: ${sum('pass')} passed, ${sum('fail') + missing} failed`);
await stopAll();
process.exit(sum('fail') + missing ? 1 : 0);
