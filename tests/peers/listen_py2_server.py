"""An upstream of both eras that can be listened to: the server of the Python SDK 2.

    listen_py2_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

Its tool `touch` says that the resource `note://1` and the list of tools have changed. `ask` and `complete` ask in
mid-call, which works in sessions alone.
"""

import argparse

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel
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


class Name(BaseModel):
    name: str


@server.tool()
def greet(name: str) -> str:
    """Greets someone."""
    return f"Hello, {name}!"


@server.tool()
async def ask(question: str, context: Context) -> str:
    """Asks the user for a name."""
    answer = await context.elicit(question, Name)
    return f"{answer.action}: {answer.data.name if answer.action == 'accept' else None}"


@server.tool()
async def complete(prompt: str, context: Context) -> str:
    """Asks the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    answer = await context.session.create_message([message], max_tokens=50)
    return f"model: {answer.content.text}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    serve(server.streamable_http_app(), options.port, "/mcp")


main()
