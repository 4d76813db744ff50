"""Calls tools as tasks with the client of FastMCP 2, between SEP-1686 and 2025-11-25, and says what came of it.

    draft_fastmcp2.py URL SLOW ARGUMENTS FAILING ARGUMENTS [ASKING ARGUMENTS]

SLOW takes some seconds, FAILING ends with an error, ASKING asks for a name. Prints one line `facts JSON`.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import McpError

TIME_LIMIT_S = 150


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def slow(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Polled, waited for and read."""
    task = await client.call_tool(tool, arguments, task=True)
    polled = await client.get_task_status(task.task_id)
    waited = await task.wait()
    result = await task.result()
    return {
        "immediate": task.returned_immediately,
        "polled": polled.status,
        "same_id": polled.taskId == task.task_id == waited.taskId,
        "waited": waited.status,
        "text": text_of(result),
        "again": text_of(await client.call_tool(tool, arguments)),
    }


async def cancelled(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    task = await client.call_tool(tool, arguments, task=True)
    await task.cancel()
    status = (await task.status()).status
    try:
        return {"status": status, "result": text_of(await task.result())}
    except McpError as error:
        return {"status": status, "code": error.error.code}


async def failed(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    task = await client.call_tool(tool, arguments, task=True)
    waited = await task.wait()
    try:
        return {"status": waited.status, "result": text_of(await task.result())}
    except ToolError as error:
        return {"status": waited.status, "error": str(error)}


async def main(url: str, *given: str) -> None:
    asked: list[str] = []

    async def elicit(message: str, *_: Any) -> Any:
        asked.append(message)
        return {"value": "Ada"}

    calls = list(zip(given[::2], (json.loads(text) for text in given[1::2])))
    async with asyncio.timeout(TIME_LIMIT_S), Client(url, elicitation_handler=elicit) as client:
        facts = {
            "version": version("fastmcp"),
            "protocol": client.initialize_result.protocolVersion,
            "slow": await slow(client, *calls[0]),
            "cancelled": await cancelled(client, *calls[0]),
            "failed": await failed(client, *calls[1]),
        }
        if calls[2:]:
            task = await client.call_tool(*calls[2], task=True)
            facts["asked"] = {"text": text_of(await task.result()), "questions": len(asked)}
    print("facts " + json.dumps(facts), flush=True)


asyncio.run(main(*sys.argv[1:]))
