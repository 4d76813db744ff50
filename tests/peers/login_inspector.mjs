// Logs in with the MCP Inspector's pages in Chromium, and calls tools as tasks there.
//
//   node login_inspector.mjs JSON      {url, issuer, flow, user, steps}
//
// Steps and facts are those of login_ts.mjs; it has {"task": TOOL, "ms": MS} alone. The one flow is `registration`. Chromium has no window; this
// driver clicks and types by Chromium's debugging protocol, and counts the requests of the pages.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const INSPECTOR = fileURLToPath(new URL('node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url));
const WAIT_MAX_MS = 60_000;

const { url, issuer, flow, user, steps } = JSON.parse(process.argv[2]);
if (flow !== 'registration') throw new Error(`no flow ${flow}`);

/** Where the programs keep what they store. */
const home = mkdtempSync(join(tmpdir(), 'inspector-'));
const children = [];
process.on('exit', () => {
  children.forEach((child) => child.kill('SIGKILL'));
  rmSync(home, { recursive: true, force: true, maxRetries: 10 });
});

function start(program, args, env = {}) {
  const child = spawn(program, args, { env: { ...process.env, HOME: home, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  children.push(child);
  return child;
}

/** The first match in what a program prints. */
function printed(stream, pattern) {
  return new Promise((resolve, reject) => {
    const lines = createInterface({ input: stream });
    lines.on('line', (line) => {
      const found = pattern.exec(line);
      if (found) resolve(found[0]);
    });
    lines.on('close', () => reject(new Error(`it did not print ${pattern}`)));
  });
}

/** The Inspector prints the port that it was told, so it cannot choose one. */
function freePort() {
  const server = createServer();
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(String(port)));
    });
  });
}

async function startInspector() {
  const server = { type: 'streamable-http', url, protocolEra: 'modern', oauth: { authorizationParams: { login_hint: user } } };
  writeFileSync(join(home, 'servers.json'), JSON.stringify({ mcpServers: { peer: server } }));
  const web = start(process.execPath, [INSPECTOR, '--web', '--config', join(home, 'servers.json')], {
    HOST: '127.0.0.1', CLIENT_PORT: await freePort(), MCP_SANDBOX_PORT: await freePort(), MCP_AUTO_OPEN_ENABLED: 'false', MCP_INSPECTOR_SECRET_STORE: 'memory',
  });
  web.stderr.pipe(process.stderr);
  return printed(web.stdout, /http:\/\/127\.0\.0\.1:\S+/);
}

const counts = { logins: 0, tokens: 0, polls: 0, scheme: undefined };

/** Counts a request of a page. The Inspector's server sends most of them on. */
function count({ url: address, postData = '{}' }) {
  if (address.startsWith(`${issuer}/auth?`)) counts.logins += 1;
  if (address.endsWith('/api/fetch') && JSON.parse(postData).url === `${issuer}/token`) counts.tokens += 1;
  if (address.endsWith('/api/mcp/send') && JSON.parse(postData).message.method === 'tasks/get') counts.polls += 1;
  counts.scheme = /"token_type":"(\w+)"/.exec(postData)?.[1] ?? counts.scheme;
}

async function openPage(address) {
  const chromium = start('chromium', [
    // Its sandbox does not run as root.
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--disable-background-networking',
    '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--window-size=1400,1000', '--remote-debugging-port=0',
    `--user-data-dir=${join(home, 'profile')}`, 'about:blank',
  ]);
  const debugging = new URL(await printed(chromium.stderr, /ws:\/\/127\.0\.0\.1:\S+/));
  const targets = await (await fetch(`http://${debugging.host}/json`)).json();
  const socket = new WebSocket(targets.find(({ type }) => type === 'page').webSocketDebuggerUrl);
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  const waiting = new Map();
  socket.onmessage = ({ data }) => {
    const { id, method, params, result } = JSON.parse(data);
    if (method === 'Network.requestWillBeSent') count(params.request);
    waiting.get(id)?.(result);
  };
  let last = 0;
  const send = (method, params = {}) =>
    new Promise((resolve) => {
      last += 1;
      waiting.set(last, resolve);
      socket.send(JSON.stringify({ id: last, method, params }));
    });
  await send('Network.enable', { maxPostDataSize: 1 << 20 });
  await send('Page.navigate', { url: address });
  return send;
}

const send = await openPage(await startInspector());

/** Evaluates an expression in the page. */
async function evaluated(expression) {
  const answer = await send('Runtime.evaluate', { expression, returnByValue: true });
  return answer?.result?.value;
}

/** Waits until an expression is true in the page; a page that is being loaded has no answer. */
async function until(expression) {
  for (const end = Date.now() + WAIT_MAX_MS; Date.now() < end; await sleep(100)) {
    const value = await evaluated(expression);
    if (value) return value;
  }
  throw new Error(`not so: ${expression}; the page shows: ${await evaluated('document.body.innerText')}`);
}

const labelled = (selector, text) => `[...document.querySelectorAll('${selector}')].find((one) => one.innerText.trim() === ${JSON.stringify(text)})`;
const click = (element) => until(`(() => { const found = ${element}; found?.click(); return found !== undefined && found !== null; })()`);
const text = 'document.body.innerText';

async function task(tool, ms) {
  await click(labelled('button', tool));
  const input = "[...document.querySelectorAll('input')].find((one) => one.labels?.[0]?.innerText.startsWith('ms'))";
  await until(`${input} && (${input}.focus(), true)`);
  await send('Input.insertText', { text: String(ms) });
  await click(`[...document.querySelectorAll('button')].find((one) => one.innerText.trim() === 'Execute Tool' && !one.disabled)`);
  const taskId = await until(`/ID: (\\S+)/.exec(${text})?.[1]`);
  // The badge of the task shows its status.
  await until(`/^(COMPLETED|FAILED|CANCELLED)$/m.test(${text})`);
  const shown = await until(`/\\nResults\\n+(.+)\\n/.exec(${text})?.[1]`);
  const status = await evaluated(`/^(COMPLETED|FAILED|CANCELLED)$/m.exec(${text})[1].toLowerCase()`);
  return { taskId, status, text: shown };
}

await click(`document.querySelector('input[type=checkbox]')`);
await until(`/^Connected$/m.test(${text})`);
await click(labelled('label', 'Tools'));
for (const { task: tool, ms } of steps) {
  const facts = await task(tool, ms);
  console.log(`facts ${JSON.stringify({ ...facts, ...counts })}`);
}
process.exit(0);
