// One line per check: "name: pass|fail|skip detail". Exit code 1 if any failed, 2 on bad usage.
const args = process.argv.slice(2);
export const url = args.find((a) => /^https?:/.test(a));
if (!url) {
  console.error('usage: node DRIVER.mjs http://127.0.0.1:PORT/mcp [check-name ...]');
  process.exit(2);
}
const only = args.filter((a) => !/^https?:/.test(a));
// A proxy that namespaces tools and prompts: PREFIX=ns__ node DRIVER.mjs URL
export const P = process.env.PREFIX ?? '';
const LIMIT = Number(process.env.CHECK_TIMEOUT_MS ?? 30000);
let failed = 0,
  passed = 0,
  skipped = 0;
export class Skip extends Error {}
export const skip = (why) => {
  throw new Skip(why);
};
export function assert(cond, msg) {
  if (!cond) throw new Error(typeof msg === 'function' ? msg() : msg);
}
export function eq(got, want, what = 'value') {
  const g = JSON.stringify(got),
    w = JSON.stringify(want);
  if (g !== w) throw new Error(`${what}: got ${String(g).slice(0, 200)}, want ${String(w).slice(0, 200)}`);
}
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
export async function until(fn, ms, what) {
  const end = Date.now() + ms;
  for (;;) {
    const v = await fn();
    if (v) return v;
    if (Date.now() > end) throw new Error(`timed out after ${ms} ms waiting for ${what}`);
    await sleep(20);
  }
}
export async function check(name, fn, limit = LIMIT) {
  if (only.length && !only.includes(name)) return;
  const t0 = Date.now();
  let timer;
  try {
    const detail = await Promise.race([
      fn(),
      new Promise((_, rej) => {
        timer = setTimeout(() => rej(new Error(`no result within ${limit} ms`)), limit);
      }),
    ]);
    passed++;
    console.log(`${name}: pass ${detail ?? ''} (${Date.now() - t0} ms)`.replace(/ +/g, ' '));
  } catch (e) {
    if (e instanceof Skip) {
      skipped++;
      console.log(`${name}: skip ${e.message}`);
    } else {
      failed++;
      console.log(
        `${name}: fail ${String(e?.message ?? e)
          .replace(/\s+/g, ' ')
          .slice(0, 400)} (${Date.now() - t0} ms)`,
      );
    }
  } finally {
    clearTimeout(timer);
  }
}
// Checks that the spec asks for but that the reference upstream itself fails: run with STRICT=1.
export const strict = (name, fn) =>
  check(
    name,
    process.env.STRICT === '1' ? fn : async () => skip('set STRICT=1 (the reference upstream fails this itself)'),
  );
export function done() {
  console.error(`${passed} passed, ${failed} failed, ${skipped} skipped`);
  process.exit(failed ? 1 : 0);
}
process.on('unhandledRejection', (e) => {
  if (process.env.DEBUG) console.error('unhandled', e);
});
