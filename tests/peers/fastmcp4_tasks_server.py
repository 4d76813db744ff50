"""An upstream with the tasks extension: a FastMCP 4 server over streamable HTTP.

    fastmcp4_tasks_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

Its `book` asks before it answers: in its task for clients that declare the extension, else by a result that has to be
answered with the call repeated.
"""

import argparse
import asyncio

from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from ready_server import serve

SECONDS_MAX = 600

server = FastMCP("fastmcp4-tasks")
server.add_extension(TasksExtension(url="memory://"))


SEAT = {
    "type": "object",
    "properties": {
        "row": {"type": "integer", "minimum": 1, "maximum": 20},
        "side": {"type": "string", "enum": ["window", "aisle"]},
        "quiet": {"type": "boolean", "default": False},
    },
    "required": ["row", "side"],
}


@server.tool(task=True)
async def book(train: str, context: Context) -> str | InputRequiredResult:
    """Books a seat, and asks which."""
    answers = context.input_responses
    if answers is None:
        params = ElicitRequestFormParams(message=f"Which seat in train {train}?", requested_schema=SEAT)
        return InputRequiredResult(input_requests={"seat": ElicitRequest(params=params)}, request_state="asked")
    answer = answers["seat"]
    if answer.action != "accept":
        return f"{train}: {answer.action} ({context.request_state})"
    seat = answer.content
    return f"{train}: row {seat['row']}, {seat['side']}, {'quiet' if seat['quiet'] else 'loud'} ({context.request_state})"


@server.tool(task=True)
async def slow(seconds: float) -> str:
    """Works for some seconds."""
    await asyncio.sleep(min(seconds, SECONDS_MAX))
    return f"worked {seconds:g} s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    serve(server.http_app(path="/mcp"), port, "/mcp")


main()
