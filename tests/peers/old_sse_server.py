"""A server as they were when HTTP+SSE was the transport: the first Python SDK with FastMCP in it (mcp 1.2.0).

    old_sse_server.py [--port N]      prints `listening http://127.0.0.1:PORT/sse`
"""

import argparse
import asyncio

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.sse import SseServerTransport
from ready_server import serve
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

SECONDS_MAX = 600

server = FastMCP("old-sse-upstream")


@server.tool()
def greet(name: str) -> str:
    """Greets someone."""
    return f"Hello, {name}!"


@server.tool()
async def slow(seconds: float, context: Context, steps: int = 4) -> str:
    """Works for some seconds and reports its progress."""
    seconds = min(seconds, SECONDS_MAX)
    for step in range(steps):
        await context.report_progress(step, steps)
        await asyncio.sleep(seconds / steps)
    return f"worked {seconds:g} s in {steps} steps"


def app() -> Starlette:
    transport = SseServerTransport("/messages/")
    inner = server._mcp_server

    async def stream(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await inner.run(read, write, inner.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", stream), Mount("/messages/", app=transport.handle_post_message)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    serve(app(), options.port, "/sse")


main()
