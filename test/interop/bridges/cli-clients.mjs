// Command-line clients and stdio bridges against an endpoint. Upstream: server-everything (default) or, with
// UPSTREAM=conformance, the go-sdk conformance server. MODERN=1 adds the Inspector's 2026-07-28 run.
import { spawn } from 'node:child_process';
import path from 'node:path';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CreateMessageRequestSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { url, P, check, assert, eq, sleep, done } from '../lib/check.mjs';
import { installed, node22 } from '../lib/process.mjs';
/** The file of a program that an npm package installs. */
const bin = (pkg, name = pkg) => {
  const { bin: programs } = JSON.parse(readFileSync(installed(`${pkg}/package.json`), 'utf8'));
  return installed(path.join(pkg, typeof programs === 'string' ? programs : programs[name]));
};
const home = mkdtempSync(path.join(tmpdir(), 'interop-home-'));
process.on('exit', () => rmSync(home, { recursive: true, force: true }));
const run = (cmd, args, ms = 30000) =>
  new Promise((resolve) => {
    const p = spawn(cmd, args, { env: { ...process.env, HOME: home }, stdio: ['ignore', 'pipe', 'pipe'] });
    let out = '',
      err = '';
    p.stdout.on('data', (d) => {
      out += d;
    });
    p.stderr.on('data', (d) => {
      err += d;
    });
    const t = setTimeout(() => p.kill('SIGKILL'), ms);
    p.on('close', (code) => {
      clearTimeout(t);
      resolve({ code, out, err });
    });
  });
const conf = process.env.UPSTREAM === 'conformance';
const TEXT = conf
  ? { tool: P + 'test_simple_text', args: [], json: {}, want: 'simple text' }
  : { tool: P + 'echo', args: ['--tool-arg', 'message=héllo'], json: { message: 'héllo' }, want: 'héllo' };
const PROMPT = P + (conf ? 'test_simple_prompt' : 'simple-prompt');
const inspector = (...a) =>
  run(node22, [bin('@modelcontextprotocol/inspector', 'inspector'), '--cli', url, '--transport', 'http', ...a]);
for (const era of process.env.MODERN === '1' ? ['legacy', 'modern'] : ['legacy']) {
  const e = ['--protocol-era', era];
  await check(
    `inspector-${era}-tools-list`,
    async () => {
      const r = await inspector('--method', 'tools/list', ...e);
      eq(r.code, 0, `exit code (${r.err.slice(-200)})`);
      assert(
        JSON.parse(r.out).tools.some((t) => t.name === TEXT.tool),
        r.out.slice(0, 200),
      );
      return `${JSON.parse(r.out).tools.length} tools`;
    },
    45000,
  );
  await check(
    `inspector-${era}-tools-call`,
    async () => {
      const r = await inspector('--method', 'tools/call', '--tool-name', TEXT.tool, ...TEXT.args, ...e);
      eq(r.code, 0, `exit code (${r.err.slice(-200)})`);
      assert(r.out.includes(TEXT.want), r.out.slice(0, 200));
    },
    45000,
  );
  await check(
    `inspector-${era}-resources`,
    async () => {
      const r = await inspector('--method', 'resources/list', ...e);
      eq(r.code, 0, `exit code (${r.err.slice(-200)})`);
      assert(JSON.parse(r.out).resources.length > 0);
    },
    45000,
  );
  await check(
    `inspector-${era}-prompt`,
    async () => {
      const r = await inspector('--method', 'prompts/get', '--prompt-name', PROMPT, ...e);
      eq(r.code, 0, `exit code (${r.err.slice(-200)})`);
      assert(r.out.includes('messages'));
    },
    45000,
  );
  await check(
    `inspector-${era}-load-200`,
    async () => {
      const r = await inspector(
        '--method',
        'tools/call',
        '--tool-name',
        TEXT.tool,
        '--tool-args-json',
        JSON.stringify(TEXT.json),
        '--load',
        '--load-requests',
        '200',
        '--load-concurrency',
        '8',
        '--format',
        'json',
        ...e,
      );
      eq(r.code, 0, `exit code (${(r.err + r.out).slice(-300)})`);
      return r.out.replace(/\s+/g, ' ').slice(0, 220);
    },
    60000,
  );
}
async function stdio(cmd, args, caps = { sampling: {}, elicitation: { form: {} } }) {
  const t = new StdioClientTransport({ command: cmd, args, env: { ...process.env, HOME: home }, stderr: 'ignore' });
  const c = new Client({ name: 'interop-bridge', version: '1.0.0' }, { capabilities: caps });
  c.n = { s: 0, e: 0 };
  c.setRequestHandler(CreateMessageRequestSchema, async () => {
    c.n.s++;
    return { model: 'stub', role: 'assistant', content: { type: 'text', text: 'sampled-over-stdio' } };
  });
  c.setRequestHandler(ElicitRequestSchema, async (r) => {
    c.n.e++;
    return { action: 'decline' };
  });
  await c.connect(t, { timeout: 25000 });
  return c;
}
async function exercise(c, progress = true) {
  assert(
    (await c.listTools()).tools.some((t) => t.name === TEXT.tool),
    'tool missing',
  );
  assert(
    JSON.stringify(await c.callTool({ name: TEXT.tool, arguments: TEXT.json })).includes(TEXT.want),
    'wrong answer',
  );
  let arrived = 0; // counted on arrival: the SDK drops progress that it reads together with the call's result
  const deliver = c.transport.onmessage;
  c.transport.onmessage = (m, extra) => {
    if (m.method === 'notifications/progress') arrived++;
    deliver(m, extra);
  };
  await c.callTool(
    conf
      ? { name: P + 'test_tool_with_progress', arguments: {} }
      : { name: P + 'trigger-long-running-operation', arguments: { duration: 1, steps: 3 } },
    undefined,
    { onprogress: () => {} },
  );
  await sleep(100);
  if (progress) eq(arrived, 3, 'progress notifications');
  await c.listResources();
  await c.listPrompts();
  await Promise.all(Array.from({ length: 20 }, () => c.callTool({ name: TEXT.tool, arguments: TEXT.json })));
}
const BRIDGES = {
  'mcp-remote': () => stdio(process.execPath, [bin('mcp-remote'), url, '--allow-http', '--transport', 'http-only']),
  supergateway: () => stdio(process.execPath, [bin('supergateway'), '--streamableHttp', url, '--logLevel', 'none']),
};
for (const [name, open] of Object.entries(BRIDGES)) {
  let c;
  await check(
    `${name}-connect`,
    async () => {
      c = await open();
      return JSON.stringify(c.getServerVersion());
    },
    40000,
  );
  if (!c) continue;
  await check(`${name}-exercise`, () => exercise(c, name !== 'supergateway' /* it forwards no progress */), 40000);
  if (name === 'mcp-remote' && process.env.MODERN !== '1')
    await check(
      `${name}-sampling`,
      async () => {
        const r = await c.callTool(
          conf
            ? { name: P + 'test_sampling', arguments: { prompt: 'x' } }
            : { name: P + 'trigger-sampling-request', arguments: { prompt: 'x', maxTokens: 9 } },
        );
        assert(JSON.stringify(r).includes('sampled-over-stdio'), JSON.stringify(r).slice(0, 200));
      },
      40000,
    );
  await c.close().catch(() => {});
}
done();
