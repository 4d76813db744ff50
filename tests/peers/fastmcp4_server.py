"""An upstream of 2026-07-28, which serves sessions too: a FastMCP 4 server.

    fastmcp4_server.py [--port N] [--tasks]      prints `listening http://127.0.0.1:PORT/mcp`
    fastmcp4_server.py --sse [...]               the same over HTTP+SSE, at /sse, with sessions
    fastmcp4_server.py --stdio [--tasks]         speaks over standard input and output instead

With --tasks, `slow` runs as a task of the server's own for clients that take them. As in FastMCP 3 no tool ends
with a JSON-RPC error.
"""

import argparse
import asyncio

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from mcp_types import SamplingMessage, TextContent
from ready_server import serve

SECONDS_MAX = 600


def build(tasks: bool) -> FastMCP:
    server = FastMCP("fastmcp4-upstream")
    if tasks:
        from fastmcp_tasks import TasksExtension

        server.add_extension(TasksExtension())

    @server.tool
    def greet(name: str) -> str:
        """Greets someone."""
        return f"Hello, {name}!"

    @server.tool(task=tasks)
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

    @server.tool
    async def ask(question: str, context: Context) -> str:
        """Asks the user for a name, in mid-call: that works in sessions alone."""
        answer = await context.elicit(question, response_type=str)
        return f"{answer.action}: {getattr(answer, 'data', None)}"

    @server.tool
    async def complete(prompt: str, context: Context) -> str:
        """Asks the client's model, as `ask` asks the user."""
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        answer = await context.session.create_message([message], max_tokens=50)
        return f"model: {answer.content.text}"

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--sse", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        build(options.tasks).run(transport="stdio", show_banner=False)
        return
    path, transport = ("/sse", "sse") if options.sse else ("/mcp", "http")
    serve(build(options.tasks).http_app(path=path, transport=transport), options.port, path)


main()
