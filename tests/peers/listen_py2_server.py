"""An upstream of 2026-07-28 that can be listened to: the server of the Python SDK 2.

    listen_py2_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

Its tool `touch` says that the resource `note://1` and the list of tools have changed.
"""

import argparse
import socket

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

NOTE = "note://1"

server = MCPServer("listen-upstream")


@server.resource(NOTE)
def note() -> str:
    """A note."""
    return "hello"


@server.tool()
async def touch(context: Context) -> str:
    """Changes the note, and seemingly the tools."""
    await context.notify_resource_updated(NOTE)
    await context.notify_tools_changed()
    return "touched"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", options.port)) as listener:
        print(f"listening http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        app = server.streamable_http_app()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


main()
