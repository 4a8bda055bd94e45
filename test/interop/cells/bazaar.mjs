// What the servers of the cells have in common, whatever SDK they are made with: what they offer, and what changes.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { root } from '../lib/process.mjs';

export const offer = JSON.parse(readFileSync(path.join(root, 'go/cells/offer.json'), 'utf8'));
export const { texts, refusal } = offer;
export const ownerSchema = { type: 'object', properties: { owner: { type: 'string' } }, required: ['owner'] };
export const capabilities = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { listChanged: true, subscribe: true },
  completions: {},
  logging: {},
};

export const grown = { tools: false, prompts: false, resources: false }; // which lists have one entry more
export const cancelled = new Set(); // keys of waits
const one = {
  tools: { name: offer.grown, inputSchema: { type: 'object' } },
  prompts: { name: offer.grown },
  resources: { uri: 'bazaar://grown', name: offer.grown },
};

/** The answer to a list request: a page of it. */
export function list(kind, cursor, { pageSize } = offer) {
  const fixed = { prompts: [offer.prompt], resourceTemplates: [offer.template] }[kind] ?? offer[kind];
  const all = grown[kind] ? [...fixed, one[kind]] : fixed;
  const from = Number(cursor ?? 0);
  const next = from + pageSize < all.length ? { nextCursor: String(from + pageSize) } : {};
  return { [kind]: all.slice(from, from + pageSize), ...next };
}

/** The contents of a resource, or undefined. */
export function contents(uri) {
  if (uri === 'bazaar://note') return [{ uri, mimeType: 'text/plain', text: texts.note }];
  if (uri === 'bazaar://bytes') return [{ uri, mimeType: 'application/octet-stream', blob: texts.bytes }];
  const id = /^bazaar:\/\/stall\/([^/]+)$/.exec(uri)?.[1];
  return id && [{ uri, mimeType: 'text/plain', text: `stall ${decodeURIComponent(id)}` }];
}

export const greeting = (args) => ({
  description: 'a greeting',
  messages: [{ role: 'user', content: { type: 'text', text: `hello ${args?.who}` } }],
});
export const completion = ({ argument }) => ({
  completion: { values: [`${argument.value}!`], total: 1, hasMore: false },
});
export const said = (text, more) => ({ content: [{ type: 'text', text }], ...more });
export const answered = (result) => `${result.action} ${result.content?.owner ?? ''}`.trim();
export const sampled = (result) => [result.content].flat()[0].text;
export const question = (args) => ({
  mode: 'form',
  message: `${texts.owner}? ${args?.how ?? ''}`,
  requestedSchema: ownerSchema,
});
export const prompt = { messages: [{ role: 'user', content: { type: 'text', text: texts.sample } }], maxTokens: 9 };

/** A structured answer with n as it came on the wire: JavaScript's own numbers end at 2^53. */
export function digits(wire) {
  const n = /"n":\s*(\d+)/.exec(wire)?.[1];
  return said(n, { structuredContent: { n: JSON.rawJSON ? JSON.rawJSON(n) : Number(n) } });
}

/** Waits until a signal fires, and remembers a key then. */
export const wait = (key, signal) =>
  new Promise((resolve) => {
    const end = setTimeout(() => resolve(said('nobody cancelled')), 20000);
    signal.addEventListener('abort', () => {
      clearTimeout(end);
      cancelled.add(key);
      resolve(said('cancelled'));
    });
  });

/** Serves POST, GET and DELETE of /mcp on a port of 127.0.0.1; serve gets the body too, as text. */
export function listen(port, serve) {
  const server = http.createServer(async (req, res) => {
    let body = '';
    for await (const chunk of req) body += chunk;
    serve(req, res, body).catch((e) => {
      console.error(e);
      if (!res.headersSent) res.writeHead(500);
      res.end();
    });
  });
  server.listen(port, '127.0.0.1');
}
