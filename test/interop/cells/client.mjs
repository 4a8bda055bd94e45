// A client of the cells against some servers:  node cells/client.mjs ts1|ts2-2025|ts2|mcp-remote name=url ...
// ts1 is the TypeScript SDK v1, ts2 v2 on 2026-07-28, ts2-2025 v2 with a session, and mcp-remote is ts1 behind the npm
// package of that name, which makes stdio of the endpoint.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import * as v1 from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as Transport1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as T from '@modelcontextprotocol/sdk/types.js';
import * as v2 from '@modelcontextprotocol/client';
import { installed } from '../lib/process.mjs';
import { answers, elicited, message, nothingHeard, run, tapped } from './checks.mjs';

const info = { name: 'cells', version: '1.0.0' };
const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} };
const lists = {
  tools: 'listTools',
  prompts: 'listPrompts',
  resources: 'listResources',
  resourceTemplates: 'listResourceTemplates',
};

/** What both SDKs have in common: connect makes the SDK's client and its transport. */
class Cell {
  constructor(url) {
    Object.assign(this, { url: new URL(url), name: sdk, heard: nothingHeard(), wire: { text: '' } });
  }
  async open() {
    this.connect();
    this.sdk.setRequestHandler(...this.named('elicitation/create', T.ElicitRequestSchema), async ({ params }) => {
      this.heard.visited = params.url ?? this.heard.visited;
      return elicited(params);
    });
    this.sdk.setRequestHandler(
      ...this.named('sampling/createMessage', T.CreateMessageRequestSchema),
      async () => message,
    );
    this.sdk.setRequestHandler(...this.named('roots/list', T.ListRootsRequestSchema), async () => ({
      roots: [answers.root],
    }));
    const { heard } = this;
    const on = (method, schema, f) =>
      this.sdk.setNotificationHandler(...this.named(method, schema), (n) => void f(n.params));
    on('notifications/message', T.LoggingMessageNotificationSchema, (p) => heard.logs.push(p.data));
    on('notifications/resources/updated', T.ResourceUpdatedNotificationSchema, () => heard.updated++);
    on('notifications/tools/list_changed', T.ToolListChangedNotificationSchema, () => heard.changed.tools++);
    on('notifications/prompts/list_changed', T.PromptListChangedNotificationSchema, () => heard.changed.prompts++);
    on(
      'notifications/resources/list_changed',
      T.ResourceListChangedNotificationSchema,
      () => heard.changed.resources++,
    );
    await this.sdk.connect(this.transport);
    await this.opened();
  }
  opened() {}
  about() {
    const sdk = this.sdk;
    return {
      version: this.version(),
      name: sdk.getServerVersion()?.name,
      instructions: sdk.getInstructions(),
      capabilities: sdk.getServerCapabilities(),
    };
  }
  async list(kind) {
    const items = [];
    for (let cursor = this.first, pages = 1; ; pages++) {
      const r = await this.sdk[lists[kind]](cursor === undefined ? undefined : { cursor });
      items.push(...r[kind]);
      if (r.nextCursor === undefined) return { items, pages: this.pages ?? pages };
      cursor = r.nextCursor;
    }
  }
  read(uri) {
    return this.sdk.readResource({ uri });
  }
  prompt(name, args) {
    return this.sdk.getPrompt({ name, arguments: args });
  }
  complete(ref, name, value) {
    return this.sdk.complete({ ref, argument: { name, value } });
  }
  ping() {
    return this.sdk.ping();
  }
  setLevel(level) {
    return this.sdk.setLoggingLevel(level);
  }
  subscribe(uri) {
    return this.sdk.subscribeResource({ uri });
  }
  unsubscribe(uri) {
    return this.sdk.unsubscribeResource({ uri });
  }
}

class V1 extends Cell {
  connect() {
    this.sdk = new v1.Client(info, { capabilities });
    this.transport = new Transport1(this.url, { fetch: tapped(sdk, this.wire) });
  }
  named(_, schema) {
    return [schema];
  }
  version() {
    return this.transport.protocolVersion;
  }
  call(name, args = {}, options) {
    return this.sdk.callTool({ name, arguments: args }, undefined, options);
  }
  async close() {
    await this.transport.terminateSession();
    await this.sdk.close();
  }
}

/** A transport that keeps what was sent last, and what was received. */
class Pipe extends StdioClientTransport {
  constructor(wire, command) {
    super(command);
    this.wire = wire;
  }
  send(m) {
    if (m.id !== undefined && m.method) this.wire.sent = JSON.stringify(m);
    return super.send(m);
  }
  get onmessage() {
    return this.receive;
  }
  set onmessage(f) {
    this.receive = (m, extra) => {
      this.wire.text += `${JSON.stringify(m)}\n`;
      f(m, extra);
    };
  }
}

class Remote extends V1 {
  connect() {
    this.home = mkdtempSync(path.join(tmpdir(), 'interop-home-'));
    const program = JSON.parse(readFileSync(installed('mcp-remote/package.json'), 'utf8')).bin['mcp-remote'];
    const args = [
      installed(path.join('mcp-remote', program)),
      this.url.href,
      '--allow-http',
      '--transport',
      'http-only',
    ];
    this.sdk = new v1.Client(info, { capabilities });
    const env = { ...process.env, HOME: this.home };
    this.transport = new Pipe(this.wire, { command: process.execPath, args, env, stderr: 'ignore' });
  }
  async close() {
    await this.sdk.close();
    rmSync(this.home, { recursive: true, force: true });
  }
}

class V2 extends Cell {
  pages = 3; // it fetches all of them in one call
  connect() {
    const versionNegotiation = { mode: this.stateless ? { pin: '2026-07-28' } : 'legacy' };
    this.sdk = new v2.Client(info, { capabilities, versionNegotiation });
    this.transport = new v2.StreamableHTTPClientTransport(this.url, { fetch: tapped(sdk, this.wire) });
  }
  named(method) {
    return [method];
  }
  version() {
    return this.sdk.getNegotiatedProtocolVersion();
  }
  call(name, args = {}, options) {
    const meta = this.level && { _meta: { [v2.LOG_LEVEL_META_KEY]: this.level } };
    return this.sdk.callTool({ name, arguments: args, ...meta }, options);
  }
  async close() {
    if (!this.stateless) await this.transport.terminateSession();
    await this.sdk.close();
  }
}

class Stateless extends V2 {
  stateless = true;
  async opened() {
    this.changes = await this.sdk.listen({
      toolsListChanged: true,
      promptsListChanged: true,
      resourcesListChanged: true,
    });
  }
  async setLevel(level) {
    this.level = level;
  }
  async subscribe(uri) {
    this.updates = await this.sdk.listen({ resourceSubscriptions: [uri] });
    if (!this.updates.honoredFilter.resourceSubscriptions?.includes(uri))
      throw new Error('the subscription was not granted');
  }
  unsubscribe() {
    return this.updates.close();
  }
}

const [sdk, ...servers] = process.argv.slice(2);
const Client = { ts1: V1, 'ts2-2025': V2, ts2: Stateless, 'mcp-remote': Remote }[sdk];
if (!Client || !servers.length) {
  console.error('usage: node cells/client.mjs ts1|ts2-2025|ts2|mcp-remote name=url ...');
  process.exit(2);
}
await run((url) => new Client(url), servers);
