// The MCP Inspector's command line against some servers, one process for each check:
//   node cells/inspector.mjs legacy|modern name=url ...
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { installed, node22, run as start } from '../lib/process.mjs';
import { offer, texts } from './bazaar.mjs';

const [era, ...servers] = process.argv.slice(2);
if (!['legacy', 'modern'].includes(era) || !servers.length) {
  console.error('usage: node cells/inspector.mjs legacy|modern name=url ...');
  process.exit(2);
}
const home = mkdtempSync(path.join(tmpdir(), 'interop-home-'));
process.on('exit', () => rmSync(home, { recursive: true, force: true }));
const inspector = installed('@modelcontextprotocol/inspector/clients/launcher/build/index.js');
const cannot = JSON.parse(process.env.CANNOT ?? '{}');

/** What the checks are: the arguments, and what the output must have in it, as JSON. */
const said = 'héllo ✓ 鍵';
const checks = {
  'tools-list': [['tools/list'], (r) => r.tools.find((t) => t.name === 'echo').title === offer.tools[0].title],
  call: [['tools/call', '--tool-name', 'echo', '--tool-arg', `text=${said}`], (r) => r.structuredContent.text === said],
  resources: [['resources/read', '--uri', 'bazaar://note'], (r) => r.contents[0].text === texts.note],
  prompts: [
    ['prompts/get', '--prompt-name', 'greet', '--prompt-args', `who=${said}`],
    (r) => r.messages[0].content.text === `hello ${said}`,
  ],
  elicitation: [['tools/call', '--tool-name', 'ask'], () => false],
};

async function check(url, [method, ...args], holds) {
  const command = [inspector, '--cli', url, '--transport', 'http', '--protocol-era', era, '--method', method, ...args];
  const { code, out } = await start(node22, command, { env: { HOME: home }, limitMs: 30000, stderr: 'ignore' });
  if (code !== 0) return `fail exit code ${code}`;
  return holds(JSON.parse(out)) ? 'pass' : `fail ${out.replace(/\s+/g, ' ').slice(0, 300)}`;
}

let failed = 0;
for (const [, name, url] of servers.map((s) => /^([^=]+)=(.+)$/.exec(s)))
  for (const [what, [args, holds]] of Object.entries(checks)) {
    const why = cannot[name]?.[what];
    const word = why ? `skip ${why}` : await check(url, args, holds).catch((e) => `fail ${e.message}`);
    if (word.startsWith('fail')) failed++;
    console.log(`${name}/${what}: ${word}`);
  }
process.exit(failed ? 1 : 0);
