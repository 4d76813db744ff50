"""Stands between a client and a server that speak over standard input and output, and makes calls slow.

    slow_stdio.py SWITCH COMMAND...

runs COMMAND and passes lines both ways as they are. While the file SWITCH is there, each `tools/call` reaches the server as
many seconds later as its first line says; one that is cancelled meanwhile never does. The file gets a line for each. It ends
as the server does.
"""

import json
import os
import signal
import subprocess
import sys
import threading

switch, command = sys.argv[1], sys.argv[2:]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
lock = threading.Lock()
waiting: dict[str, threading.Timer] = {}


def deliver(line: bytes) -> None:
    with lock:
        try:
            server.stdin.write(line)
            server.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass


def seconds_later() -> float | None:
    try:
        with open(switch) as file:
            return float(file.readline())
    except FileNotFoundError:
        return None


def take(line: bytes) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        return deliver(line)
    method = message.get("method")
    if method == "notifications/cancelled":
        timer = waiting.pop(json.dumps(message.get("params", {}).get("requestId")), None)
        if timer:
            timer.cancel()
    seconds = seconds_later() if method == "tools/call" else None
    if seconds is None:
        return deliver(line)
    timer = threading.Timer(seconds, deliver, [line])
    timer.daemon = True
    waiting[json.dumps(message["id"])] = timer
    timer.start()
    try:
        # The file may have been removed meanwhile.
        with open(os.open(switch, os.O_WRONLY | os.O_APPEND), "w") as log:
            log.write("a call waits\n")
    except FileNotFoundError:
        pass


def read() -> None:
    for line in sys.stdin.buffer:
        take(line)
    server.stdin.close()


threading.Thread(target=read, daemon=True).start()
for line in server.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
code = server.wait()
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(max(code, 0))
