// Drives server-filesystem with clients of the TypeScript SDK, all at once, each with a file of its own.
//
//   node filesystem.mjs MODULES URL DIRECTORY CLIENTS
//
// MODULES is the node_modules folder that has @modelcontextprotocol/sdk. Exits 0 and prints how many tools there are, or
// says what went wrong and exits 1.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';

const [modules, url, directory, clients] = process.argv.slice(2);
const require = createRequire(path.join(modules, 'from-here.js'));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');

async function drive(n) {
  const client = new Client({ name: `typescript-${n}`, version: '1' });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const text = async (name, args) => {
    const result = await client.callTool({ name, arguments: args });
    assert(!result.isError, `${name}: ${JSON.stringify(result)}`);
    return result.content[0].text;
  };
  const { tools } = await client.listTools();
  const file = path.join(directory, `typescript-${n}.txt`);
  for (const content of [`first of ${n}`, `second of ${n}: ünïcödé`]) {
    await text('write_file', { path: file, content });
    assert.equal(await text('read_text_file', { path: file }), content);
  }
  assert((await text('list_directory', { path: directory })).includes(path.basename(file)));
  await assert.rejects(text('read_text_file', { path: '/etc/passwd' }), /denied/);
  await transport.terminateSession();
  await client.close();
  return tools.length;
}

const counts = await Promise.all(Array.from({ length: Number(clients) }, (_, n) => drive(n)));
assert(counts.every((c) => c === counts[0] && c > 0), `tools: ${counts}`);
console.log(counts[0]);
