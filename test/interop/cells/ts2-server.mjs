// The bazaar with the TypeScript SDK v2: a stateless server, which has no initialize.   node cells/ts2-server.mjs PORT
import { createMcpHandler, inputRequired, inputResponse, ProtocolError, Server } from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import * as b from './bazaar.mjs';

let wire = ''; // the newest body

/** The answer to a question, or what asks it. */
function asked(ctx, key, request, requestState) {
  const answer = inputResponse(ctx.mcpReq.inputResponses, key);
  if (answer.kind !== 'missing') return { answer };
  return { ask: inputRequired({ inputRequests: { [key]: request }, requestState }) };
}

const tools = {
  echo: ({ args }) => b.said(args.text, { structuredContent: { text: args.text } }),
  digits: () => b.digits(wire),
  async steps({ ctx }) {
    for (let progress = 1; progress <= 4; progress++) await report(ctx, progress);
    return b.said('done');
  },
  async wait({ args, ctx }) {
    await report(ctx, 1);
    return b.wait(args.key, ctx.mcpReq.signal);
  },
  cancelled: ({ args }) => b.said(String(b.cancelled.has(args.key))),
  ask({ args, ctx }) {
    const { answer, ask } = asked(ctx, 'owner', inputRequired.elicit(b.question(args)));
    return ask ?? b.said(b.answered(answer));
  },
  visit({ ctx }) {
    const { answer, ask } = asked(ctx, 'visit', inputRequired.elicitUrl({ message: b.texts.visit, url: b.texts.url }));
    return ask ?? b.said(answer.action);
  },
  sample({ ctx }) {
    const { answer, ask } = asked(ctx, 'sample', inputRequired.createMessage(b.prompt));
    return ask ?? b.said(b.sampled(answer.result));
  },
  roots({ ctx }) {
    const { answer, ask } = asked(ctx, 'roots', inputRequired.listRoots());
    return ask ?? b.said(answer.roots.map((r) => `${r.uri} ${r.name}`).join());
  },
  interview({ args, ctx }) {
    const owner = ctx.mcpReq.requestState();
    if (owner === undefined) {
      const { answer, ask } = asked(ctx, 'owner', inputRequired.elicit(b.question(args)));
      return ask ?? asked(ctx, 'sample', inputRequired.createMessage(b.prompt), b.answered(answer)).ask;
    }
    return b.said(`${owner} / ${b.sampled(inputResponse(ctx.mcpReq.inputResponses, 'sample').result)}`);
  },
  async log({ ctx }) {
    await ctx.mcpReq.log('debug', b.texts.quiet);
    await ctx.mcpReq.log('warning', b.texts.loud);
    return b.said('logged');
  },
  fail: () => b.said(b.texts.failure, { isError: true }),
  refuse() {
    throw new ProtocolError(b.refusal.code, b.texts.refusal, b.refusal.data);
  },
  change({ args }) {
    b.grown[args.what] = !b.grown[args.what];
    handler.notify[`${args.what}Changed`]();
    return b.said('changed');
  },
  touch() {
    handler.notify.resourceUpdated('bazaar://note');
    return b.said('touched');
  },
};

async function report(ctx, progress) {
  const progressToken = ctx.mcpReq._meta?.progressToken;
  if (progressToken === undefined) return;
  const params = { progressToken, progress, total: 4, message: `step ${progress} ✓` };
  await ctx.mcpReq.notify({ method: 'notifications/progress', params });
}

/** A server for one request. */
function make() {
  const { name, version, instructions } = b.offer;
  const server = new Server({ name, version }, { capabilities: b.capabilities, instructions });
  const on = (method, f) => server.setRequestHandler(method, (r, ctx) => f(r.params ?? {}, ctx));
  on('tools/list', (p) => b.list('tools', p.cursor));
  on('prompts/list', (p) => b.list('prompts', p.cursor));
  on('resources/list', (p) => b.list('resources', p.cursor));
  on('resources/templates/list', (p) => b.list('resourceTemplates', p.cursor));
  on('prompts/get', (p) => b.greeting(p.arguments));
  on('completion/complete', b.completion);
  on('resources/read', (p) => {
    const contents = b.contents(p.uri);
    if (!contents) throw new ProtocolError(-32602, 'no such resource', { uri: p.uri });
    return { contents };
  });
  on('tools/call', (p, ctx) => {
    if (p.name === b.offer.grown && b.grown.tools) return b.said(b.offer.grown);
    if (!tools[p.name]) throw new ProtocolError(-32602, `no tool ${p.name}`);
    return tools[p.name]({ args: p.arguments ?? {}, ctx });
  });
  return server;
}

const handler = createMcpHandler(make, { legacy: 'reject' });
const serve = toNodeHandler(handler);
b.listen(process.argv[2], async (req, res, body) => {
  wire = body;
  await serve(req, res, body ? JSON.parse(body) : undefined);
});
