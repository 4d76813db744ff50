// What the TypeScript drivers of sessions share: the command line, the cases, and the line of facts.
//
//   session_NAME.mjs URL CASE JSON [CASE JSON]...
//
// A URL that ends with /sse is spoken to over HTTP+SSE.
//
// opens a session with the `initialize` handshake, does what CASE says with what JSON gives, and prints one JSON
// line of facts on stdout; then the next case, in a session of its own. JSON is a case of session-cases.json.
// The facts are
//
//   outcome     ok | tool_error | protocol_error | client_error | not_applicable (then with `why`)
//   text, code  of the last answer            protocol   the negotiated version
//   asked       questions of the server that were answered
//   notified    notifications of the kind the case waits for, and `last`, what the last of them says
//   resumed     streams that were taken up again with Last-Event-ID
//   status      (delete) HTTP status of a request with the session's id after its end
//   task        (task…) the id of the task, and `ended`, the status that it ended with
//   session_kept (two_calls) whether the client still had its first session
//
// `two_calls` prints `READY` between its calls and goes on when it reads a line on stdin.

import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const TIME_LIMIT_MS = 150_000;
const NOTICE_LIMIT_MS = 20_000;

/** Whether a URL is that of the older transport. */
export const isOlder = (url) => new URL(url).pathname.endsWith('/sse');

export const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };
export const CAPABILITIES = { elicitation: {}, sampling: {}, roots: { listChanged: true } };

/** The version of an installed package, also of one whose exports hide its package.json. */
export const versionOf = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url), 'utf8')).version;

/** Reads along: session ids, the end of the session, resumed streams. */
class Wire {
  ids = [];
  resumed = 0;
  deleted = null;

  fetch = async (url, options = {}) => {
    const response = await fetch(url, options);
    const id = response.headers.get('mcp-session-id');
    if (id && !this.ids.includes(id)) this.ids.push(id);
    if (options.method === 'DELETE') this.deleted = response.status;
    if (new Headers(options.headers).has('last-event-id') && response.ok) this.resumed += 1;
    return response;
  };
}

/** Counts what comes and wakes who waits for it. */
class Bell {
  count = 0;
  last = null;
  #waiting = [];

  ring(value) {
    this.count += 1;
    this.last = value ?? null;
    this.#waiting.splice(0).forEach((wake) => wake());
  }

  /** Whether it has rung within that time. */
  async rung(limitMs) {
    if (this.count > 0) return true;
    await Promise.race([new Promise((wake) => this.#waiting.push(wake)), sleep(limitMs)]);
    return this.count > 0;
  }
}

export const textOf = (content = []) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');
const returned = ({ content, isError }) => ({ outcome: isError ? 'tool_error' : 'ok', text: textOf(content) });

/** What the client answers when the server asks. */
const answersOf = (given, asked) => ({
  'elicitation/create': () => {
    asked.ring();
    return { action: 'accept', content: given.answer };
  },
  'sampling/createMessage': () => {
    asked.ring();
    return { role: 'assistant', model: given.answer.model, content: { type: 'text', text: given.answer.text } };
  },
  'roots/list': () => {
    asked.ring();
    return { roots: [given.answer] };
  },
});

/** Calls the tool that makes the server speak, again if it says so, until the notification is there. */
async function provoke(session, given, notices) {
  const deadline = Date.now() + NOTICE_LIMIT_MS;
  let facts;
  do {
    facts = returned(await session.call(given.tool, given.arguments));
  } while (!(await notices.rung(given.again_after_ms ?? NOTICE_LIMIT_MS)) && Date.now() < deadline);
  if (notices.count === 0) throw new Error('the notification did not come');
  return { ...facts, notified: notices.count, last: notices.last };
}

/** Asks the server until it has begun the call. */
async function begun(session, { begun: { tool, arguments: given } }) {
  await session.call(tool, given);
}

async function requestWithId(url, id, protocol) {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'Mcp-Session-Id': id,
      'MCP-Protocol-Version': protocol,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 'after-the-end', method: 'tools/list', params: {} }),
  });
  await response.body?.cancel();
  return response.status;
}

const plain = async ({ session, given, asked }) => {
  if (given.server_asks_first) await asked.rung(NOTICE_LIMIT_MS);
  return returned(await session.call(given.tool, given.arguments));
};

const inTask = async ({ session, given }) => {
  const { result, ...task } = await session.task(given.tool, given.arguments);
  return { ...returned(result), ...task };
};

const cases = {
  fast: plain,
  tool_error: plain,
  elicit: plain,
  sample: plain,
  roots: plain,
  resume: plain,
  protocol_error: async ({ session, given }) => {
    if (given.prompt === undefined) return returned(await session.call(given.tool, given.arguments));
    await session.prompt(given.prompt);
    return { outcome: 'ok' };
  },
  progress: async ({ session, given }) => {
    const steps = new Bell();
    const onprogress = ({ progress }) => steps.ring(progress);
    const facts = returned(await session.call(given.tool, given.arguments, { onprogress }));
    return { ...facts, notified: steps.count, last: steps.last };
  },
  held: async ({ session, given }) => {
    const steps = new Bell();
    const onprogress = ({ progress }) => steps.ring(progress);
    const patience = { onprogress, timeout: given.timeout_ms, resetTimeoutOnProgress: true };
    const facts = returned(await session.call(given.tool, given.arguments, patience));
    return { ...facts, notified: steps.count, last: steps.last };
  },
  subscribe: async ({ session, given, on }) => {
    const notices = on('notifications/resources/updated', ({ uri }) => uri);
    await session.subscribe(given.uri);
    return provoke(session, given, notices);
  },
  list_changed: async ({ session, given, on }) => {
    const name = given.notification;
    return provoke(session, given, on(name, () => name));
  },
  log: async ({ session, given, on }) => {
    await session.setLevel(given.level);
    return provoke(session, given, on('notifications/message', ({ level }) => level));
  },
  cancel: async ({ session, given }) => {
    const abort = new AbortController();
    const call = session.call(given.tool, given.arguments, { signal: abort.signal });
    const seen = call.then(() => null, (error) => error);
    await begun(session, given);
    abort.abort('no longer needed');
    const error = await seen;
    if (error === null) return { outcome: 'client_error', text: 'the call was answered although it was cancelled' };
    const after = returned(await session.call(given.then.tool, given.then.arguments));
    return { ...after, cancelled: String(error) };
  },
  task: inTask,
  task_ask: inTask,
  task_cancel: async ({ session, given }) => {
    const task = await session.cancelledTask(given.tool, given.arguments, () => begun(session, given));
    return { ...returned(await session.call(given.then.tool, given.then.arguments)), ...task };
  },
  delete: async ({ session, given, wire, url }) => {
    const facts = returned(await session.call(given.tool, given.arguments));
    const protocol = session.protocol();
    await session.terminate();
    return { ...facts, deleted: wire.deleted, status: await requestWithId(url, wire.ids[0], protocol) };
  },
  two_calls: async ({ session, given, asked, wire }) => {
    const first = await plain({ session, given, asked });
    if (first.outcome !== 'ok') return first;
    console.log('READY');
    await new Promise((go) => createInterface({ input: process.stdin }).once('line', go).once('close', go));
    const second = returned(await session.call(given.tool, given.arguments));
    return { ...second, text: `${first.text}\n${second.text}`, session_kept: wire.ids.length === 1 };
  },
};

/**
 * Runs the cases of the command line and ends the process.
 *
 * `open(url, { fetch, answers, listen })` connects one client and returns its session: `call`, `prompt`,
 * `subscribe`, `setLevel`, `terminate`, `close`, `protocol`, and `task`, `cancelledTask` where it knows tasks.
 * `isProtocolError(error)` knows its errors.
 */
export async function main(driver) {
  const [url, ...given] = process.argv.slice(2);
  const isCase = (word, at) => at % 2 === 1 || Object.hasOwn(cases, word);
  if (given.length === 0 || given.length % 2 === 1 || !given.every(isCase)) {
    console.error(`usage: ${process.argv[1]} URL ${Object.keys(cases).join('|')} JSON [CASE JSON]...`);
    process.exit(2);
  }
  let failed = false;
  for (let at = 0; at < given.length; at += 2) {
    const outcome = await runCase(driver, url, given[at], JSON.parse(given[at + 1]));
    failed ||= outcome === 'client_error';
  }
  process.exit(failed ? 1 : 0);
}

async function runCase({ name, open, isProtocolError }, url, kind, json) {
  const given = { arguments: {}, ...json };
  const wire = new Wire();
  const asked = new Bell();
  const heard = new Map();
  const on = (method, show) => {
    const bell = new Bell();
    heard.set(method, (params) => bell.ring(show(params)));
    return bell;
  };
  let session;
  const drive = async () => {
    session = await open(url, {
      fetch: wire.fetch,
      answers: answersOf(given, asked),
      listen: (method, params) => heard.get(method)?.(params ?? {}),
    });
    return cases[kind]({ session, given, wire, url, asked, on });
  };
  const started = Date.now();
  const late = sleep(TIME_LIMIT_MS, { outcome: 'client_error', text: `no end within ${TIME_LIMIT_MS} ms` });
  const facts = await Promise.race([drive().catch((error) => factsOfError(error, isProtocolError)), late]);
  console.log(JSON.stringify({
    client: name, version: versionOf(name), protocol: session?.protocol() ?? null,
    outcome: null, text: '', code: null, asked: asked.count, resumed: wire.resumed,
    elapsed_ms: Date.now() - started,
    ...facts,
  }));
  await Promise.race([Promise.resolve(session?.close()).catch(() => {}), sleep(1000)]);
  return facts.outcome;
}

function factsOfError(error, isProtocolError) {
  if (isProtocolError(error)) return { outcome: 'protocol_error', text: error.message, code: error.code };
  return { outcome: 'client_error', text: String(error.cause ? `${error}: ${error.cause}` : error) };
}
