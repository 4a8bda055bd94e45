// The checks of the cells for clients in JavaScript; go/cells/checks.go has the same for those in Go. A client is
// {open, close, about, list, call, read, prompt, complete, subscribe, unsubscribe, setLevel, ping}, and heard and wire
// say what it was told and the bytes that reached its SDK.
import { isDeepStrictEqual } from 'node:util';
import { offer, refusal, texts } from './bazaar.mjs';

const LIMIT = Number(process.env.CHECK_TIMEOUT_MS ?? 15000);
const big = '9007199254740993'; // the first integer that a double cannot hold
export const answers = { owner: 'Ada Λ', sampled: 'sampled 見本', root: { uri: 'file:///cells/root', name: 'root ✓' } };

/** What a client answers to the questions of a server. */
export const elicited = ({ mode, message }) =>
  mode === 'url'
    ? { action: 'accept' }
    : message.endsWith('decline')
      ? { action: 'decline' }
      : { action: 'accept', content: { owner: answers.owner } };
export const message = {
  model: 'stub',
  role: 'assistant',
  stopReason: 'endTurn',
  content: { type: 'text', text: answers.sampled },
};

export const nothingHeard = () => ({
  progress: [],
  logs: [],
  updated: 0,
  changed: { tools: 0, prompts: 0, resources: 0 },
});

/** A fetch that keeps what the SDK sent last, and the last bytes which reached it. */
export function tapped(name, wire) {
  return async (url, options) => {
    if (options?.body) wire.sent = options.body;
    const headers = new Headers(options?.headers);
    headers.set('authorization', `Bearer ${name}`); // so that clients share nothing
    const r = await fetch(url, { ...options, headers });
    if (!r.body) return r;
    const text = new TextDecoder();
    const keep = new TransformStream({
      transform(chunk, controller) {
        wire.text = (wire.text + text.decode(chunk, { stream: true })).slice(-65536);
        controller.enqueue(chunk);
      },
    });
    return new Response(r.body.pipeThrough(keep), { status: r.status, statusText: r.statusText, headers: r.headers });
  };
}

function eq(got, want, what) {
  if (!isDeepStrictEqual(got, want))
    throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

/** Runs again, now and then, until is() is true: what is to be heard may be said before a stream is open. */
async function until(what, is, again = () => {}) {
  const end = Date.now() + LIMIT * 0.8;
  for (let i = 0; !is(); i++) {
    if (Date.now() > end) throw new Error(`timed out waiting for ${typeof what === 'function' ? what() : what}`);
    if (i % 20 === 0) await again();
    await new Promise((r) => setTimeout(r, 10));
  }
}

async function failure(promise, what) {
  const e = await promise.then(
    () => null,
    (e) => e,
  );
  if (!e) throw new Error(`${what} succeeded`);
  return e;
}

const text = (result) => result.content.map((c) => c.text ?? '').join('');

/** What a call says, where it asked on the way as clients of this wire are asked. */
async function asked(c, tool, args, method) {
  c.wire.text = '';
  const said = text(await c.call(tool, args));
  const how = c.stateless ? '"resultType":"input_required"' : `"method":"${method}"`;
  if (!c.wire.text.includes(how) || !c.wire.text.includes(method)) throw new Error(`it was not asked by ${how}`);
  return said;
}

async function changes(c, what) {
  const before = c.heard.changed[what];
  const names = async () => (await c.list(what)).items.map((i) => i.name);
  await until(
    `changed ${what}`,
    () => c.heard.changed[what] > before,
    () => c.call('change', { what }),
  );
  if (!(await names()).includes(offer.grown)) await c.call('change', { what });
  if (!(await names()).includes(offer.grown)) throw new Error(`the new entry of ${what} is not listed`);
  await c.call('change', { what });
}

export const checks = {
  async connect(c) {
    await c.open();
    const { version, name, instructions, capabilities: has } = c.about();
    eq([name, instructions], [offer.name, offer.instructions], 'introduction');
    for (const k of ['tools', 'prompts', 'resources', 'completions', 'logging'])
      if (!has[k]) throw new Error(`no ${k}`);
    for (const k of ['tools', 'prompts', 'resources']) eq(has[k].listChanged, true, `${k}.listChanged`);
    return version;
  },
  async 'tools-list'(c) {
    const { items, pages } = await c.list('tools');
    eq(items.map((t) => t.name).sort(), offer.tools.map((t) => t.name).sort(), 'names');
    const [got, want] = [items.find((t) => t.name === 'echo'), offer.tools[0]];
    for (const k of ['title', 'description', 'inputSchema', 'outputSchema', '_meta']) eq(got[k], want[k], k);
    if (pages < 2) throw new Error(`${pages} page, want more`);
    return `${pages} pages`;
  },
  async call(c) {
    const said = 'héllo ✓ "quoted" \\ \u2028 🗝';
    const r = await c.call('echo', { text: said });
    eq([text(r), r.structuredContent], [said, { text: said }], 'answer');
  },
  async 'big-integers'(c) {
    c.wire.text = '';
    eq(text(await c.call('digits', { n: JSON.rawJSON(big) })), big, 'digits at the server');
    if (!new RegExp(`"structuredContent":\\s*{"n":\\s*${big}}`).test(c.wire.text))
      throw new Error(`got ${c.wire.text}`);
  },
  async 'tool-error'(c) {
    const r = await c.call('fail');
    eq([r.isError, text(r)], [true, texts.failure], 'answer');
  },
  async 'protocol-error'(c) {
    const e = await failure(c.call('refuse'), 'refuse');
    if (!e.message.includes(texts.refusal)) throw new Error(`got ${e.message}`);
  },
  async 'error-code'(c) {
    const e = await failure(c.call('refuse'), 'refuse');
    eq([e.code, e.data], [refusal.code, refusal.data], 'code and data');
  },
  'unknown-tool': async (c) => eq((await failure(c.call('nothing'), 'nothing')).code, -32602, 'code'),
  // On the wire, since an SDK may drop what it reads together with the call's result; and more than once, since a server
  // may do so with what it says just before it.
  async progress(c) {
    const want = [1, 2, 3, 4].map((i) => `step ${i} ✓`);
    let got;
    await until(
      () => `reports of 4 steps, got ${got}`,
      () => isDeepStrictEqual(got, want),
      async () => {
        c.wire.text = '';
        eq(text(await c.call('steps', {}, { onprogress: () => {} })), 'done', 'answer');
        const token = /"progressToken":[^,}]+/.exec(c.wire.sent)[0];
        const reports = c.wire.text
          .split('\n')
          .filter((l) => l.includes('"notifications/progress"') && l.includes(token));
        got = reports.map((l) => /"message":"([^"]+)"/.exec(l)?.[1]);
      },
    );
  },
  async parallel(c) {
    const texts = Array.from({ length: 20 }, (_, i) => `call ${i}`);
    eq(await Promise.all(texts.map(async (t) => text(await c.call('echo', { text: t })))), texts, 'answers');
  },
  elicitation: async (c) => eq(await asked(c, 'ask', {}, 'elicitation/create'), `accept ${answers.owner}`, 'answer'),
  'elicitation-declined': async (c) =>
    eq(await asked(c, 'ask', { how: 'decline' }, 'elicitation/create'), 'decline', 'answer'),
  async 'elicitation-url'(c) {
    eq(await asked(c, 'visit', {}, 'elicitation/create'), 'accept', 'answer');
    eq(c.heard.visited, texts.url, 'URL');
  },
  sampling: async (c) => eq(await asked(c, 'sample', {}, 'sampling/createMessage'), answers.sampled, 'answer'),
  roots: async (c) =>
    eq(await asked(c, 'roots', {}, 'roots/list'), `${answers.root.uri} ${answers.root.name}`, 'answer'),
  async 'two-rounds'(c) {
    const want = `accept ${answers.owner} / ${answers.sampled}`;
    eq(await asked(c, 'interview', {}, 'sampling/createMessage'), want, 'answer');
  },
  async resources(c) {
    const uris = (await c.list('resources')).items.map((r) => r.uri).sort();
    eq(uris, offer.resources.map((r) => r.uri).sort(), 'URIs');
    eq((await c.read('bazaar://note')).contents[0].text, texts.note, 'text');
    eq((await c.read('bazaar://bytes')).contents[0].blob, texts.bytes, 'blob');
  },
  async templates(c) {
    eq(
      (await c.list('resourceTemplates')).items.map((t) => t.uriTemplate),
      [offer.template.uriTemplate],
      'templates',
    );
    eq((await c.read('bazaar://stall/7')).contents[0].text, 'stall 7', 'text');
  },
  async 'resource-missing'(c) {
    const { code } = await failure(c.read('bazaar://nothing'), 'reading nothing');
    if (code !== -32602 && (c.stateless || code !== -32002)) throw new Error(`code ${code}`);
    return `code ${code}`;
  },
  async subscribe(c) {
    await c.subscribe('bazaar://note');
    const before = c.heard.updated;
    await until(
      'an update',
      () => c.heard.updated > before,
      () => c.call('touch'),
    );
    await c.unsubscribe('bazaar://note');
  },
  async prompts(c) {
    eq(
      (await c.list('prompts')).items.map((p) => p.name),
      [offer.prompt.name],
      'names',
    );
    eq((await c.prompt('greet', { who: 'Žofie 鍵' })).messages[0].content.text, 'hello Žofie 鍵', 'message');
  },
  async completion(c) {
    const prompt = { type: 'ref/prompt', name: 'greet' };
    eq((await c.complete(prompt, 'who', 'wor')).completion.values, ['wor!'], 'values for a prompt');
    const template = { type: 'ref/resource', uri: offer.template.uriTemplate };
    eq((await c.complete(template, 'id', '7')).completion.values, ['7!'], 'values for a template');
  },
  async logging(c) {
    await c.setLevel('warning');
    await until(
      'a log message',
      () => c.heard.logs.length > 0,
      () => c.call('log'),
    );
    eq([...new Set(c.heard.logs)], [texts.loud], 'messages');
  },
  'tools-changed': (c) => changes(c, 'tools'),
  'prompts-changed': (c) => changes(c, 'prompts'),
  'resources-changed': (c) => changes(c, 'resources'),
  // Late, since what a server asks aside of a call soon after another was given up is nobody's.
  async cancel(c) {
    const key = `${c.name} ${Date.now()}`;
    const gone = new AbortController();
    const call = c.call('wait', { key }, { signal: gone.signal, onprogress: () => gone.abort('enough') });
    await failure(call, 'a cancelled call');
    let was;
    await until(
      'the cancellation at the server',
      () => was === 'true',
      async () => {
        was = text(await c.call('cancelled', { key }));
      },
    );
  },
  ping: (c) => c.ping(),
  close: (c) => c.close(),
};

/** Runs every check against servers given as name=url, and prints "server/check: pass|fail|skip detail" for each. */
export async function run(make, servers) {
  const cannot = JSON.parse(process.env.CANNOT ?? '{}');
  let failed = 0;
  for (const [, name, url] of servers.map((s) => /^([^=]+)=(.+)$/.exec(s))) {
    const client = make(url);
    for (const [check, f] of Object.entries(checks)) {
      if (check === 'ping' && client.stateless) continue; // which that wire does not have
      const why = cannot[name]?.[check];
      if (why) {
        console.log(`${name}/${check}: skip ${why}`);
        continue;
      }
      const began = Date.now();
      let timer;
      const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error('no end')), LIMIT)));
      const said = await Promise.race([f(client), late]).then(
        (detail) => `pass ${detail ?? ''}`,
        (e) =>
          `fail ${String(e?.message ?? e)
            .replace(/\s+/g, ' ')
            .slice(0, 300)}`,
      );
      clearTimeout(timer);
      if (said.startsWith('fail')) failed++;
      console.log(`${name}/${check}: ${said} (${Date.now() - began} ms)`.replace(/ +/g, ' '));
      if (check === 'connect' && said.startsWith('fail')) break;
    }
  }
  process.exit(failed ? 1 : 0);
}

process.on('unhandledRejection', (e) => process.env.DEBUG && console.error('unhandled', e));
