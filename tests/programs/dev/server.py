"""A server under development: each tool shows one kind of event."""

import json
import os
import sys
import threading
import traceback

WORD = "first"
writing = threading.Lock()


def send(message):
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def say(text):
    sys.stderr.write(text)
    sys.stderr.flush()


def ends():
    try:
        raise RuntimeError("deliberate \x1b[31mfault\u202e")
    except RuntimeError:
        say(traceback.format_exc())
    os._exit(3)


def call(message):
    params = message["params"]
    token = params.get("_meta", {}).get("progressToken")
    name = params["name"]
    if name == "waits":
        # For ever: until the program is stopped.
        say("it waits\n")
        return
    if name == "tells":
        if token is not None:
            progress = {"progressToken": token, "progress": 1, "total": 3, "message": "a part"}
            send({"method": "notifications/progress", "params": progress})
        send({"method": "notifications/message", "params": {"level": "warning", "data": "a note"}})
    if name == "refuses":
        send({"id": message["id"], "error": {"code": -32001, "message": "not today"}})
        return
    if name == "floods":
        say("".join("flood %d\n" % n for n in range(20000)))
        ends()
    if name == "crashes":
        ends()
    send({"id": message["id"], "result": {"content": [{"type": "text", "text": WORD + " " + name}]}})


say("process %d\n" % os.getpid())
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "developed", "version": "1.2"},
        }
        send({"id": message["id"], "result": result})
    elif message.get("method") == "tools/list":
        names = ["quick", "tells", "waits", "refuses", "floods", "crashes"]
        send({"id": message["id"], "result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in names]}})
    elif message.get("method") == "tools/call":
        threading.Thread(target=call, args=(message,), daemon=True).start()
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
