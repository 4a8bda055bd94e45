// Starts public servers to put behind a proxy, each on a free port of 127.0.0.1, and prints "name url" when it answers.
// Ends them on SIGINT or SIGTERM, or when its parent is gone.
//   node upstreams/start.mjs [name ...]      default: everything tasks conformance conformance-2025
// FS_DIR is the folder that the filesystem server shows (default: one under the system's temporary folder).
import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { binaries, freePort, installed, node22, root, sleep, start, stopAll } from '../lib/process.mjs';

const files = process.env.FS_DIR ?? path.join(tmpdir(), 'interop-fs');

const node = process.execPath;
const loopback = `--import=${path.join(root, 'upstreams/loopback.mjs')}`;
const everything = installed('@modelcontextprotocol/server-everything/dist/index.js');
const thinking = installed('@modelcontextprotocol/server-sequential-thinking/dist/index.js');

const bridged = (port, pkg, ...args) => [
  node,
  [
    installed('mcp-proxy/dist/bin/mcp-proxy.mjs'),
    ...['--host', '127.0.0.1', '--port', port, '--', node],
    installed(`${pkg}/dist/index.js`),
    ...args,
  ],
];

// How to start each on a port: [command, arguments, environment].
const servers = {
  everything: (port) => [node, [loopback, everything, 'streamableHttp'], { PORT: port }],
  tasks: (port) => [node, [path.join(root, 'upstreams/tasks-server.mjs'), port]],
  conformance: (port) => [path.join(binaries, 'everything-server'), [`-http=127.0.0.1:${port}`]],
  'conformance-2025': (port) => [
    path.join(binaries, 'everything-server'),
    [`-http=127.0.0.1:${port}`, '-stateless=false'],
  ],
  resume: (port) => [path.join(binaries, 'resume-upstream'), [`127.0.0.1:${port}`]],
  'mcp-proxy-everything': (port) => bridged(port, '@modelcontextprotocol/server-everything', 'stdio'),
  filesystem: (port) => bridged(port, '@modelcontextprotocol/server-filesystem', files),
  memory: (port) => bridged(port, '@modelcontextprotocol/server-memory'),
  thinking: (port) => [
    node,
    [
      loopback,
      installed('supergateway/dist/index.js'),
      ...['--stdio', `${node} ${thinking}`, '--outputTransport', 'streamableHttp', '--stateful'],
      ...['--port', port, '--logLevel', 'none'],
    ],
  ],
  fastmcp: (port) => [node, [path.join(root, 'bridges/fastmcp-server.mjs'), port]],
  // The bazaar of the cells, each of one era alone; Node 22 can write integers beyond 2^53.
  'cell-ts1': (port) => [node22, [path.join(root, 'cells/ts1-server.mjs'), port]],
  'cell-ts2': (port) => [node22, [path.join(root, 'cells/ts2-server.mjs'), port]],
  'cell-mcpgo-2025': (port) => [path.join(binaries, 'cell-server'), ['-2025', 'mcpgo', `127.0.0.1:${port}`]],
  'cell-mcpgo': (port) => [path.join(binaries, 'cell-server'), ['mcpgo', `127.0.0.1:${port}`]],
  'cell-gosdk-2025': (port) => [path.join(binaries, 'cell-server'), ['-2025', 'gosdk', `127.0.0.1:${port}`]],
  'cell-gosdk': (port) => [path.join(binaries, 'cell-server'), ['gosdk', `127.0.0.1:${port}`]],
};

async function answers(url) {
  const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  const body = '{"jsonrpc":"2.0","method":"notifications/none"}';
  return fetch(url, { method: 'POST', headers, body, signal: AbortSignal.timeout(2000) }).then(
    () => true,
    () => false,
  );
}

async function bringUp(name) {
  const port = String(await freePort());
  const [command, args, env] = servers[name](port);
  const child = start(command, args, { env });
  child.on('exit', (code, signal) => child.killed || console.error(`upstream ${name} ended: ${code ?? signal}`));
  const url = `http://127.0.0.1:${port}/mcp`;
  const end = Date.now() + 60000;
  while (!(await answers(url))) {
    if (Date.now() > end || child.exitCode !== null) {
      console.error(`${name} did not start; DEBUG=1 shows what it says`);
      process.exit(1);
    }
    await sleep(100);
  }
  console.log(`${name} ${url}`);
}

const parent = process.ppid;
setInterval(() => process.ppid === parent || stopAll().then(() => process.exit(1)), 1000);

const names =
  process.argv.length > 2 ? process.argv.slice(2) : ['everything', 'tasks', 'conformance', 'conformance-2025'];
const unknown = names.filter((n) => !servers[n]);
if (unknown.length) {
  console.error(`unknown upstream ${unknown}; known: ${Object.keys(servers).join(' ')}`);
  process.exit(2);
}
if (names.includes('filesystem')) mkdirSync(files, { recursive: true });
for (const name of names) await bringUp(name);
