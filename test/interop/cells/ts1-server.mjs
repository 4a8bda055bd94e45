// The bazaar with the TypeScript SDK v1: a server with sessions.   node cells/ts1-server.mjs PORT
import { randomUUID } from 'node:crypto';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as T from '@modelcontextprotocol/sdk/types.js';
import * as b from './bazaar.mjs';

const sessions = new Map(); // by id: {server, transport, subscribed}
let wire = ''; // the newest body

const tools = {
  echo: ({ args }) => b.said(args.text, { structuredContent: { text: args.text } }),
  digits: () => b.digits(wire),
  async steps({ extra }) {
    for (let progress = 1; progress <= 4; progress++) await report(extra, progress);
    return b.said('done');
  },
  async wait({ args, extra }) {
    await report(extra, 1);
    return b.wait(args.key, extra.signal);
  },
  cancelled: ({ args }) => b.said(String(b.cancelled.has(args.key))),
  async ask({ args, extra }) {
    const params = b.question(args);
    return b.said(b.answered(await extra.sendRequest({ method: 'elicitation/create', params }, T.ElicitResultSchema)));
  },
  async visit({ session, extra }) {
    const params = { mode: 'url', message: b.texts.visit, url: b.texts.url, elicitationId: randomUUID() };
    return b.said((await session.server.elicitInput(params, { relatedRequestId: extra.requestId })).action);
  },
  // On the session's own stream, where a server asks that does not say for which call.
  sample: async ({ session }) => b.said(b.sampled(await session.server.createMessage(b.prompt))),
  roots: async ({ session }) =>
    b.said((await session.server.listRoots()).roots.map((r) => `${r.uri} ${r.name}`).join()),
  async interview(call) {
    const owner = await tools.ask(call);
    const sampled = await tools.sample(call);
    return b.said(`${owner.content[0].text} / ${sampled.content[0].text}`);
  },
  async log({ session, extra }) {
    await session.server.sendLoggingMessage({ level: 'debug', data: b.texts.quiet }, extra.sessionId);
    await session.server.sendLoggingMessage({ level: 'warning', data: b.texts.loud }, extra.sessionId);
    await new Promise((r) => setTimeout(r, 20)); // it went another way than the answer will
    return b.said('logged');
  },
  fail: () => b.said(b.texts.failure, { isError: true }),
  refuse() {
    throw new T.McpError(b.refusal.code, b.texts.refusal, b.refusal.data);
  },
  async change({ args }) {
    b.grown[args.what] = !b.grown[args.what];
    const tell = {
      tools: 'sendToolListChanged',
      prompts: 'sendPromptListChanged',
      resources: 'sendResourceListChanged',
    };
    for (const { server } of sessions.values()) await server[tell[args.what]]();
    return b.said('changed');
  },
  async touch() {
    const uri = 'bazaar://note';
    for (const s of sessions.values()) if (s.subscribed.has(uri)) await s.server.sendResourceUpdated({ uri });
    return b.said('touched');
  },
};

async function report(extra, progress) {
  const progressToken = extra._meta?.progressToken;
  if (progressToken === undefined) return;
  const params = { progressToken, progress, total: 4, message: `step ${progress} ✓` };
  await extra.sendNotification({ method: 'notifications/progress', params });
}

/** A session that opens when its first request, initialize, is given to its transport. */
function open() {
  const { name, version, instructions } = b.offer;
  const server = new Server({ name, version }, { capabilities: b.capabilities, instructions });
  const session = { server, subscribed: new Set() };
  const on = (schema, f) => server.setRequestHandler(schema, (r, extra) => f(r.params ?? {}, extra));
  on(T.ListToolsRequestSchema, (p) => b.list('tools', p.cursor));
  on(T.ListPromptsRequestSchema, (p) => b.list('prompts', p.cursor));
  on(T.ListResourcesRequestSchema, (p) => b.list('resources', p.cursor));
  on(T.ListResourceTemplatesRequestSchema, (p) => b.list('resourceTemplates', p.cursor));
  on(T.GetPromptRequestSchema, (p) => b.greeting(p.arguments));
  on(T.CompleteRequestSchema, b.completion);
  on(T.SubscribeRequestSchema, (p) => (session.subscribed.add(p.uri), {}));
  on(T.UnsubscribeRequestSchema, (p) => (session.subscribed.delete(p.uri), {}));
  on(T.ReadResourceRequestSchema, (p) => {
    const contents = b.contents(p.uri);
    if (!contents) throw new T.McpError(-32002, 'no such resource', { uri: p.uri });
    return { contents };
  });
  on(T.CallToolRequestSchema, (p, extra) => {
    if (p.name === b.offer.grown && b.grown.tools) return b.said(b.offer.grown);
    if (!tools[p.name]) throw new T.McpError(T.ErrorCode.InvalidParams, `no tool ${p.name}`);
    return tools[p.name]({ args: p.arguments ?? {}, extra, session });
  });
  session.transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => sessions.set(id, session),
    onsessionclosed: (id) => sessions.delete(id),
  });
  return session;
}

b.listen(process.argv[2], async (req, res, body) => {
  const id = req.headers['mcp-session-id'];
  const session = id ? sessions.get(id) : open();
  if (!session) return res.writeHead(404).end();
  if (!id) await session.server.connect(session.transport);
  wire = body;
  await session.transport.handleRequest(req, res, body ? JSON.parse(body) : undefined);
});
