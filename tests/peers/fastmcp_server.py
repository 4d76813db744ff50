"""An upstream that knows no tasks: a FastMCP 3 server over streamable HTTP with sessions, without resumption.

    fastmcp_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
    fastmcp_server.py --sse [...]     the same over HTTP+SSE, at /sse
    fastmcp_server.py --stdio         speaks over standard input and output instead

It has no tool that ends with a JSON-RPC error: FastMCP 3 turns an unknown tool, bad arguments and every
exception of a tool or of middleware, McpError too, into a result with `isError`. An unknown prompt is one.
It has no resource to subscribe to, because FastMCP 3 does not know `resources/subscribe`.
It sends `roots/list` on the session's own stream and drops it where there is none yet. Nothing orders a client's GET
before a call that it sends on another connection, so the tool `roots` waits for that stream.
"""

import argparse
import asyncio
from collections import Counter, defaultdict
from typing import Literal

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from mcp.types import ToolListChangedNotification
from ready_server import serve
from starlette.middleware import Middleware

SECONDS_MAX = 600
WAIT_MAX_S = 10

server = FastMCP("fastmcp-upstream")
begun_calls: Counter[str] = Counter()
cancelled_calls: Counter[str] = Counter()
own_streams: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


class OwnStreams:
    """ASGI middleware: notes which sessions have a stream of their own."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")

        async def noting(message) -> None:
            await send(message)
            if message["type"] == "http.response.start" and message["status"] == 200:
                own_streams[session.decode()].set()

        is_own_stream = scope["type"] == "http" and scope["method"] == "GET" and session
        await self.app(scope, receive, noting if is_own_stream else send)


@server.tool
def greet(name: str) -> str:
    """Greets someone."""
    return f"Hello, {name}!"


@server.tool
async def slow(seconds: float, context: Context, steps: int = 4) -> str:
    """Works for some seconds and reports its progress."""
    seconds = min(seconds, SECONDS_MAX)
    begun_calls[context.session_id] += 1
    try:
        for step in range(steps):
            await context.report_progress(step, steps, f"step {step + 1} of {steps}")
            await asyncio.sleep(seconds / steps)
    except asyncio.CancelledError:
        cancelled_calls[context.session_id] += 1
        raise
    return f"worked {seconds:g} s in {steps} steps"


@server.tool
def fail() -> str:
    """Fails."""
    raise ToolError("it broke")


@server.tool
async def ask(question: str, context: Context) -> str:
    """Asks the user for a name."""
    answer = await context.elicit(question, response_type=str, response_title="name")
    return f"{answer.action}: {getattr(answer, 'data', None)}"


@server.tool
async def complete(prompt: str, context: Context) -> str:
    """Asks the client's model."""
    return f"model: {(await context.sample(prompt, max_tokens=50)).text}"


@server.tool
async def roots(context: Context) -> str:
    """Names the client's roots."""
    if context.transport == "streamable-http":
        await asyncio.wait_for(own_streams[context.session_id].wait(), WAIT_MAX_S)
    return "\n".join(str(root.uri) for root in await context.list_roots())


@server.tool
async def change_tools(context: Context) -> str:
    """Says that the tools changed."""
    await context.send_notification(ToolListChangedNotification(method="notifications/tools/list_changed"))
    return "told"


@server.tool
async def log(level: Literal["debug", "info", "warning", "error"], data: str, context: Context) -> str:
    """Logs a message."""
    await context.log(data, level=level)
    return "logged"


@server.tool
async def cancelled(at_least: int, context: Context) -> str:
    """Says how many calls of this session were cancelled, once there are so many."""
    return f"{await counted(cancelled_calls, at_least, context)} cancelled"


@server.tool
async def begun(at_least: int, context: Context) -> str:
    """Says how many slow calls of this session were begun, once there are so many."""
    return f"{await counted(begun_calls, at_least, context)} begun"


async def counted(calls: Counter[str], at_least: int, context: Context) -> int:
    deadline = asyncio.get_running_loop().time() + WAIT_MAX_S
    while calls[context.session_id] < at_least and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    return calls[context.session_id]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--sse", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        server.run(transport="stdio", show_banner=False)
        return
    path, transport = ("/sse", "sse") if options.sse else ("/mcp", "http")
    app = server.http_app(path=path, transport=transport, middleware=[Middleware(OwnStreams)])
    serve(app, options.port, path)


main()
