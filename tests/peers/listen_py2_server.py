"""An upstream of 2026-07-28 that can be listened to: the server of the Python SDK 2.

    listen_py2_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

Its tool `touch` says that the resource `note://1` and the list of tools have changed.
"""

import argparse

from mcp.server.mcpserver import Context, MCPServer
from ready_server import serve

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
    serve(server.streamable_http_app(), options.port, "/mcp")


main()
