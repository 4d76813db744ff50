"""Drives a server over stdio with the client of the Python SDK 1 or 2, or with FastMCP 4, whose client knows extension tasks.

    wrap_py.py sdk|fastmcp FAST ARGUMENTS_JSON SLOW ARGUMENTS_JSON COMMAND...

prints one JSON line of facts on stdout: how many tools there are, what the fast and the slow call said, and, where the
client knows tasks, what the slow one said as a task and its id.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

TIME_LIMIT_S = 150
IS_FIRST = version("mcp").startswith("1.")


def text_of(content: list[Any]) -> str:
    return "\n".join(part.text for part in content if part.type == "text")


def parameters(command: list[str]) -> Any:
    from mcp import StdioServerParameters

    return StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))


def be_patient() -> None:
    """A busy machine needs more than the SDK's 10 s to start a server; clients speak an earlier version to one that is late."""
    from mcp.client import session

    session.DISCOVER_TIMEOUT_SECONDS = TIME_LIMIT_S


async def first(facts: dict[str, Any], fast: Any, slow: Any, command: list[str]) -> None:
    """Version 1 of the SDK, which has tasks of 2025-11-25."""
    from mcp import ClientSession, types
    from mcp.client.stdio import stdio_client

    async with stdio_client(parameters(command)) as (read, write), ClientSession(read, write) as session:
        facts["protocol"] = (await session.initialize()).protocolVersion
        facts["tools"] = len((await session.list_tools()).tools)
        facts["fast"] = text_of((await session.call_tool(*fast)).content)
        facts["slow"] = text_of((await session.call_tool(*slow)).content)
        tasks = session.experimental
        facts["task"] = (await tasks.call_tool_as_task(*slow)).task.taskId
        async for _ in tasks.poll_task(facts["task"]):
            pass
        facts["as_task"] = text_of((await tasks.get_task_result(facts["task"], types.CallToolResult)).content)


async def second(facts: dict[str, Any], fast: Any, slow: Any, command: list[str]) -> None:
    """Version 2 in its default mode, which has none."""
    from mcp import Client

    be_patient()
    async with Client(parameters(command)) as client:
        facts["protocol"] = client.session.protocol_version
        facts["tools"] = len((await client.list_tools()).tools)
        facts["fast"] = text_of((await client.call_tool(*fast)).content)
        facts["slow"] = text_of((await client.call_tool(*slow)).content)


async def fastmcp(facts: dict[str, Any], fast: Any, slow: Any, command: list[str]) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport
    from fastmcp_tasks import call_tool_task

    be_patient()
    transport = StdioTransport(command[0], command[1:], env=dict(os.environ), keep_alive=False)
    async with Client(transport) as client:
        facts["tools"] = len(await client.list_tools())
        facts["fast"] = text_of((await client.call_tool(*fast)).content)
        facts["slow"] = text_of((await client.call_tool(*slow)).content)
        task = await call_tool_task(client, *slow)
        facts["task"] = task.task_id
        await task.wait(timeout=120)
        facts["as_task"] = text_of((await task.result()).content)


kind, fast_tool, fast_json, slow_tool, slow_json, *words = sys.argv[1:]
drive = fastmcp if kind == "fastmcp" else first if IS_FIRST else second
facts: dict[str, Any] = {"client": kind, "version": version("mcp"), "task": None, "as_task": None}
calls = (fast_tool, json.loads(fast_json)), (slow_tool, json.loads(slow_json))
asyncio.run(asyncio.wait_for(drive(facts, *calls, words), TIME_LIMIT_S))
print(json.dumps(facts))
