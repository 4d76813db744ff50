"""An upstream that knows no tasks: a FastMCP 3 server over streamable HTTP with sessions.

    fastmcp_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

It has no tool that ends with a JSON-RPC error: FastMCP 3 turns an unknown tool, bad arguments and every
exception of a tool or of middleware, McpError too, into a result with `isError`.
"""

import argparse
import asyncio
import socket

import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

SECONDS_MAX = 600

server = FastMCP("fastmcp-upstream")


@server.tool
def greet(name: str) -> str:
    """Greets someone."""
    return f"Hello, {name}!"


@server.tool
async def slow(seconds: float, context: Context, steps: int = 4) -> str:
    """Works for some seconds and reports its progress."""
    seconds = min(seconds, SECONDS_MAX)
    for step in range(steps):
        await context.report_progress(step, steps, f"step {step + 1} of {steps}")
        await asyncio.sleep(seconds / steps)
    return f"worked {seconds:g} s in {steps} steps"


@server.tool
def fail() -> str:
    """Fails."""
    raise ToolError("it broke")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    with socket.create_server(("127.0.0.1", port)) as listener:
        print(f"listening http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        app = server.http_app(path="/mcp")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


main()
