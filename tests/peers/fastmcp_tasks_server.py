"""An upstream that makes tasks of its own in the words of 2025-11-25: a FastMCP 3 server with its task extra.

    fastmcp_tasks_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

`only_as_task` says what it is, the other tools work either way. Its tasks live in memory.
"""

import argparse
import asyncio

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.tasks import TaskConfig
from ready_server import serve

SECONDS_MAX = 600

server = FastMCP("fastmcp-tasks-upstream")


@server.tool(task=TaskConfig(mode="optional"))
async def greet(name: str) -> str:
    """Greets someone."""
    return f"Hello, {name}!"


@server.tool(task=TaskConfig(mode="optional"))
async def slow(seconds: float, context: Context, steps: int = 4) -> str:
    """Works for some seconds and reports its progress."""
    seconds = min(seconds, SECONDS_MAX)
    for step in range(steps):
        await context.report_progress(step, steps, f"step {step + 1} of {steps}")
        await asyncio.sleep(seconds / steps)
    return f"worked {seconds:g} s in {steps} steps"


@server.tool(task=TaskConfig(mode="required"))
async def only_as_task(seconds: float) -> str:
    """Works for some seconds, and never in a plain call."""
    await asyncio.sleep(min(seconds, SECONDS_MAX))
    return f"worked {seconds:g} s as a task"


@server.tool(task=TaskConfig(mode="optional"))
async def fail() -> str:
    """Fails."""
    raise ToolError("it broke")


@server.tool(task=TaskConfig(mode="optional"))
async def ask(question: str, context: Context) -> str:
    """Asks the user for a name."""
    answer = await context.elicit(question, response_type=str, response_title="name")
    return f"{answer.action}: {getattr(answer, 'data', None)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    serve(server.http_app(path="/mcp"), port, "/mcp")


main()
