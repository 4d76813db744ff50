"""Stands between a client and a server that speak over standard input and output, and makes calls slow.

    slow_stdio.py SWITCH SECONDS COMMAND...

runs COMMAND and passes lines both ways as they are. While the file SWITCH is there, each `tools/call` reaches the server
SECONDS later; one that is cancelled meanwhile never does. The file gets a line for each. It ends as the server does.
"""

import json
import os
import signal
import subprocess
import sys
import threading

switch, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
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
    if method != "tools/call" or not os.path.exists(switch):
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
