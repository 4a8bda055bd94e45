// The command that the suite's client scenarios run: the go-sdk's conformance client, behind a proxy if PROXY names one.
// The last argument is the URL of the suite's mock server; the suite judges what reaches it.
import path from 'node:path';
import { binaries, sleep, start, startProxy, stop } from '../lib/process.mjs';

const upstream = process.argv.at(-1);
const proxy = process.env.PROXY ? await startProxy(process.env.PROXY, upstream) : undefined;
const client = start(path.join(binaries, 'everything-client'), [proxy?.url ?? upstream], { stdio: 'inherit' });
const code = await new Promise((r) => client.on('close', r));
if (proxy) {
  await sleep(100); // what the proxy still has to tell the mock server
  await stop(proxy.process);
}
process.exit(code ?? 1);
