// Runs the official conformance suite and reads what it found, check by check.
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { installed, node22, run } from '../lib/process.mjs';

const suite = installed('@modelcontextprotocol/conformance/dist/index.js');

// The scenarios of the tasks extension, which the suite runs only when they are named.
const tasksScenarios = [
  'tasks-lifecycle',
  'tasks-capability-negotiation',
  'tasks-wire-fields',
  'tasks-request-state-removal',
  'tasks-mrtr-input',
  'tasks-request-headers',
  'tasks-dispatch-and-envelope',
  'tasks-required-task-error',
  'tasks-mrtr-composition',
];

// The scenarios that test a client without OAuth, those a proxy's upstream side can be held to.
export const clientScenarios = {
  '2025-11-25': [
    'initialize',
    'tools_call',
    'elicitation-sep1034-client-defaults',
    'sse-retry',
    'json-schema-2020-12-preservation',
  ],
  '2026-07-28': [
    'tools_call',
    'request-metadata',
    'sep-2322-client-request-state',
    'http-standard-headers',
    'http-custom-headers',
    'http-invalid-tool-headers',
    'json-schema-ref-no-deref',
    'json-schema-2020-12-preservation',
  ],
};

/** Calls f with a temporary folder for the suite's results, then reads them. */
async function results(f) {
  const folder = mkdtempSync(path.join(tmpdir(), 'conformance-'));
  try {
    const log = await f(folder);
    const found = read(folder, log);
    if (!found.size) throw new Error(`the suite produced no results: ${log.slice(-1000)}`);
    return found;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Reads a folder of results into a map from scenario to {passed, failed}, each a map from check id to how often, and
 * why, the first failure's text. A scenario that threw has left no file, only a line in the log.
 */
function read(folder, log) {
  const found = new Map();
  for (const d of readdirSync(folder)) {
    const file = path.join(folder, d, 'checks.json');
    if (!existsSync(file)) continue;
    const scenario = d.replace(/^server-/, '').replace(/-\d{4}-\d\d-\d\dT.*$/, '');
    found.set(scenario, tally(JSON.parse(readFileSync(file))));
  }
  for (const [, scenario, , failed] of log.matchAll(/^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed/gm))
    if (!found.has(scenario))
      found.set(scenario, { passed: new Map(), failed: new Map([['threw', +failed]]), why: 'it threw or timed out' });
  return found;
}

function tally(checks) {
  const r = { passed: new Map(), failed: new Map(), why: '' };
  for (const c of checks) {
    const into = { SUCCESS: r.passed, FAILURE: r.failed }[c.status];
    into?.set(c.id, (into.get(c.id) ?? 0) + 1);
    if (c.status === 'FAILURE') r.why ||= `${c.id}: ${c.errorMessage ?? ''}`;
  }
  return r;
}

/** Runs the server scenarios of a specification version, or of 'tasks', at an endpoint. */
export const testServer = (url, spec) =>
  results(async (folder) => {
    const args = [suite, 'server', '--url', url, '-o', folder];
    if (spec !== 'tasks') return (await run(node22, [...args, '--suite', 'all', '--spec-version', spec])).out;
    const one = async (s) =>
      (await run(node22, [...args, '--scenario', s, '--spec-version', '2026-07-28', '--force'])).out;
    return (await Promise.all(tasksScenarios.map(one))).join('');
  });

/** Runs the client scenarios of a version with a command that is given the URL of the suite's mock server. */
export const testClient = (command, spec) =>
  results(async (folder) => {
    let log = '';
    for (const s of clientScenarios[spec]) {
      const args = [suite, 'client', '--command', command, '--scenario', s, '--spec-version', spec];
      log += (await run(node22, [...args, '--force', '--timeout', '30000', '-o', folder])).out;
    }
    return log;
  });
