#!/usr/bin/env node
// Starts the program in the package of this platform: it has the launcher's standard streams, its signals and its exit code.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";
import { isatty } from "node:tty";

const { platform, arch, argv } = process;
const name = `@taskgate/${platform}-${arch}`;

function fail(code, text) {
  process.stderr.write(`taskgate: ${text}\n`);
  process.exit(code);
}

let program;
try {
  program = createRequire(import.meta.url).resolve(`${name}/bin/taskgate`);
} catch {
  fail(69, `no program for ${platform} on ${arch}: the optional package ${name} is not installed`);
}

let child;
// Before the program starts, which may be sent a signal at once.
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"]) {
  // A terminal sends Ctrl-C to both.
  process.on(signal, () => signal !== "SIGINT" || !isatty(0) ? child.kill(signal) : undefined);
}
child = spawn(program, argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => fail(70, `${program}: ${error.message}`));
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
