// Drives a session with the command line programs of the MCP Inspector: `--cli` where one command is enough,
// `mcpdo`, which holds a session between commands, where it takes more. See session_driver.mjs for the command
// line, the cases and the facts; these programs show neither the version nor the session.

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const TIME_LIMIT_MS = 150_000;
// Each command is a process of its own, which takes many seconds to begin on a busy machine.
const NOTICE_LIMIT_MS = 60_000;
const INSPECTOR = fileURLToPath(new URL('node_modules/@modelcontextprotocol/inspector/', import.meta.url));
const CLI = [join(INSPECTOR, 'clients/launcher/build/index.js'), '--cli'];
const MCPDO = [join(INSPECTOR, 'clients/mcpdo/build/mcp-bin.js')];
const { version } = JSON.parse(readFileSync(join(INSPECTOR, 'package.json'), 'utf8'));

const CANNOT = {
  sample: 'it does not declare sampling',
  list_changed: 'it does not show list changes',
  cancel: 'it has no command that cancels a call',
  delete: 'it ends its sessions without a DELETE',
};

/** Where the programs keep what they store, of which nothing outlives the driver. */
const home = mkdtempSync(join(tmpdir(), 'inspector-'));
const config = join(home, 'servers.json');
const env = {
  ...process.env,
  HOME: home,
  MCP_INSPECTOR_DAEMON_DIR: join(home, 'daemon'),
  MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(32).toString('base64url'),
  MCP_INSPECTOR_SECRET_STORE: 'memory',
};

const children = new Set();

function start(program, args) {
  const child = spawn(process.execPath, [...program, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(child);
  child.once('close', () => children.delete(child));
  const output = { stdout: '', stderr: '' };
  child.stdout.on('data', (chunk) => { output.stdout += chunk; });
  child.stderr.on('data', (chunk) => { output.stderr += chunk; });
  const ended = new Promise((resolve) => child.once('close', (code) => resolve({ code, ...output })));
  return { child, output, ended };
}

/** An error as the programs report it: JSON-RPC errors have neither an HTTP status nor a cause. */
class Reported extends Error {
  constructor({ code, message, status, cause }) {
    super(message);
    this.isProtocol = code === 'error' && status === undefined && cause === undefined;
  }
}

/** Runs one command to its end; what it says of an error stands in the last line of stderr. */
async function run(program, args) {
  const { code, stdout, stderr } = await start(program, args).ended;
  if (stdout.trim() !== '') return JSON.parse(stdout);
  const last = stderr.trim().split('\n').at(-1);
  if (!last.startsWith('{')) throw new Error(`exit status ${code}: ${last}`);
  throw new Reported(JSON.parse(last).error);
}

const cli = async (...args) =>
  (await run(CLI, ['--config', config, '--server', 'peer', '--format', 'json', ...args])).result;
const mcpdo = (...args) => run(MCPDO, ['--format', 'json', '--connection', 'peer', ...args]);

/** Connects. On a busy machine the program's daemon may begin later than the program waits for it: then the next attempt finds it. */
async function connect() {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await run(MCPDO, ['--format', 'json', '--config', config, 'connect', 'peer']);
    } catch (error) {
      if (attempt === 5 || !error.message.includes('waiting for connection daemon')) throw error;
    }
  }
}

const textOf = (content = []) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');
const returned = ({ content, isError }) => ({ outcome: isError ? 'tool_error' : 'ok', text: textOf(content) });

const plain = async ({ tool, arguments: args }) =>
  returned(await cli('--method', 'tools/call', '--tool-name', tool, '--tool-args-json', JSON.stringify(args)));
const held = (tool, args) => mcpdo('tools/call', tool, '--tool-args-json', JSON.stringify(args));

/** Listens with one command while others make the server speak; `find` finds the notifications in its output. */
async function provoke({ tool, arguments: args, again_after_ms: again = NOTICE_LIMIT_MS }, listening, find) {
  const { child, output } = start(MCPDO, ['--format', 'json', '--connection', 'peer', ...listening]);
  try {
    const deadline = Date.now() + NOTICE_LIMIT_MS;
    let facts;
    let called = 0;
    while (Date.now() < deadline) {
      if (Date.now() - called >= again) {
        facts = returned(await held(tool, args));
        called = Date.now();
      }
      const found = find(output.stdout);
      if (found.length > 0) return { ...facts, notified: found.length, last: found.at(-1) };
      await sleep(100);
    }
    throw new Error('the notification did not come');
  } finally {
    child.kill();
  }
}

const cases = {
  fast: plain,
  progress: plain,
  tool_error: plain,
  roots: plain,
  resume: plain,
  protocol_error: async (given) => {
    if (given.prompt === undefined) return plain(given);
    await cli('--method', 'prompts/get', '--prompt-name', given.prompt);
    return { outcome: 'ok' };
  },
  elicit: async ({ tool, arguments: args, answer }) => {
    await connect();
    const { elicitationPending: asked } = await held(tool, args);
    if (asked === undefined) return { outcome: 'client_error', text: 'the server did not ask' };
    return { ...returned(await mcpdo('elicitation/respond', asked.elicitationId, JSON.stringify(answer))), asked: 1 };
  },
  subscribe: async (given) => {
    await connect();
    const find = (shown) => [...shown.matchAll(/"resources\/updated",\s*"uri":\s*"([^"]+)"/g)].map(([, uri]) => uri);
    return provoke(given, ['resources/subscribe', given.uri], find);
  },
  log: async (given) => {
    await connect();
    await mcpdo('logging/setLevel', given.level);
    const find = (shown) => [...shown.matchAll(/"level":\s*"([^"]+)"/g)].map(([, level]) => level);
    return provoke(given, ['logging/tail'], find);
  },
  two_calls: async ({ tool, arguments: args }) => {
    await connect();
    const first = returned(await held(tool, args));
    if (first.outcome !== 'ok') return first;
    console.log('READY');
    await new Promise((go) => createInterface({ input: process.stdin }).once('line', go).once('close', go));
    const second = returned(await held(tool, args));
    return { ...second, text: `${first.text}\n${second.text}` };
  },
};

function factsOfError(error) {
  // Its code is shown only where the server repeats it in the message.
  const code = /^MCP error (-?\d+)/.exec(error.message)?.[1];
  if (error.isProtocol) return { outcome: 'protocol_error', text: error.message, code: code ? Number(code) : null };
  return { outcome: 'client_error', text: String(error) };
}

async function drive(kind, url, given) {
  if (Object.hasOwn(CANNOT, kind)) return { outcome: 'not_applicable', why: CANNOT[kind] };
  const roots = kind === 'roots' ? { roots: [given.answer] } : {};
  writeFileSync(config, JSON.stringify({ mcpServers: { peer: { type: 'streamable-http', url, ...roots } } }));
  return cases[kind](given);
}

/** Runs one case and prints its facts; nothing of it is left behind for the next. */
async function runCase(url, kind, given) {
  const started = Date.now();
  const late = sleep(TIME_LIMIT_MS, { outcome: 'client_error', text: `no end within ${TIME_LIMIT_MS} ms` });
  const driven = drive(kind, url, { arguments: {}, ...given }).catch(factsOfError);
  const facts = await Promise.race([driven, late]);
  console.log(JSON.stringify({
    client: '@modelcontextprotocol/inspector', version, protocol: null,
    outcome: null, text: '', code: null, elapsed_ms: Date.now() - started,
    ...facts,
  }));
  children.forEach((child) => child.kill());
  await Promise.race([run(MCPDO, ['--format', 'json', 'daemon', 'stop']).catch(() => {}), sleep(5000)]);
  return facts.outcome;
}

const [url, ...given] = process.argv.slice(2);
const isCase = (word, at) => at % 2 === 1 || Object.hasOwn(cases, word) || Object.hasOwn(CANNOT, word);
if (given.length === 0 || given.length % 2 === 1 || !given.every(isCase)) {
  console.error(`usage: ${process.argv[1]} URL CASE JSON [CASE JSON]...`);
  process.exit(2);
}
let failed = false;
for (let at = 0; at < given.length; at += 2) {
  const outcome = await runCase(url, given[at], JSON.parse(given[at + 1]));
  failed ||= outcome === 'client_error';
}
rmSync(home, { recursive: true, force: true });
process.exit(failed ? 1 : 0);
