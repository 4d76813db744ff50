"""Uses several servers at one address with the client of the Python SDK 1 or 2, or with FastMCP 4.

    endpoint_py.py sdk|fastmcp URL PLAN_JSON

See endpoint_ts.mjs for the plan and the facts it prints. Version 1 of the SDK knows tasks of 2025-11-25, FastMCP those of the
extension.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

TIME_LIMIT_S = 150
LISTS_MAX = 20
IS_FIRST = version("mcp").startswith("1.")

Facts = dict[str, Any]


def text_of(content: list[Any]) -> str:
    return "\n".join(part.text for part in content if part.type == "text")


def said_by(messages: list[Any]) -> str:
    return text_of([message.content for message in messages])


def filled(schema: dict[str, Any]) -> dict[str, Any]:
    """A form with what it requires."""
    properties = schema["properties"]
    return {name: True if properties[name]["type"] == "boolean" else "Ada" for name in schema.get("required", [])}


async def all_tools(plan: dict[str, Any], listed: Callable[[], Awaitable[list[Any]]]) -> list[str]:
    """The names of all tools, once every server has some: programs take their time to start."""
    names: list[str] = []
    for _ in range(LISTS_MAX):
        names = [tool.name for tool in await listed()]
        if all(any(name.startswith(f"{server}__") for name in names) for server in plan["servers"]):
            break
    return names


def call_of(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return call["tool"], call["arguments"]


async def first(facts: Facts, plan: dict[str, Any], url: str) -> None:
    from mcp import ClientSession, types
    from mcp.client.streamable_http import streamable_http_client

    async def elicited(_context: Any, params: Any) -> Any:
        facts["asked"] += 1
        return types.ElicitResult(action="accept", content=filled(params.requestedSchema))

    async with (
        streamable_http_client(url) as (read, write, *_),
        ClientSession(read, write, elicitation_callback=elicited) as session,
    ):
        await session.initialize()

        async def listed() -> list[Any]:
            return (await session.list_tools()).tools

        facts["tools"] = await all_tools(plan, listed)
        facts["prompts"] = [prompt.name for prompt in (await session.list_prompts()).prompts]
        facts["said"] = [text_of((await session.call_tool(*call_of(call))).content) for call in plan["calls"]]
        facts["resource"] = (await session.read_resource(plan["resource"])).contents[0].text
        prompt = plan["prompt"]
        facts["prompt"] = said_by((await session.get_prompt(prompt["name"], prompt["arguments"])).messages)
        tasks = session.experimental
        facts["task"] = (await tasks.call_tool_as_task(*call_of(plan["slow"]))).task.taskId
        async for _ in tasks.poll_task(facts["task"]):
            pass
        facts["slow"] = text_of((await tasks.get_task_result(facts["task"], types.CallToolResult)).content)
        facts["answered"] = text_of((await session.call_tool(*call_of(plan["ask"]))).content)


async def second(facts: Facts, plan: dict[str, Any], url: str) -> None:
    from mcp import Client, types
    from mcp.client.streamable_http import streamable_http_client

    async def elicited(_context: Any, params: Any) -> Any:
        facts["asked"] += 1
        return types.ElicitResult(action="accept", content=filled(params.requested_schema))

    async with Client(streamable_http_client(url), elicitation_callback=elicited) as client:

        async def listed() -> list[Any]:
            return (await client.list_tools()).tools

        facts["tools"] = await all_tools(plan, listed)
        facts["prompts"] = [prompt.name for prompt in (await client.list_prompts()).prompts]
        facts["said"] = [text_of((await client.call_tool(*call_of(call))).content) for call in plan["calls"]]
        facts["resource"] = (await client.read_resource(plan["resource"])).contents[0].text
        prompt = plan["prompt"]
        facts["prompt"] = said_by((await client.get_prompt(prompt["name"], prompt["arguments"])).messages)
        facts["slow"] = text_of((await client.call_tool(*call_of(plan["slow"]))).content)
        facts["answered"] = text_of((await client.call_tool(*call_of(plan["ask"]))).content)


async def fastmcp(facts: Facts, plan: dict[str, Any], url: str) -> None:
    from fastmcp import Client
    from fastmcp.client.elicitation import ElicitResult
    from fastmcp_tasks import call_tool_task

    async def elicited(_message: str, _response_type: Any, params: Any, _context: Any) -> Any:
        facts["asked"] += 1
        return ElicitResult(action="accept", content=filled(params.requested_schema))

    async with Client(url, elicitation_handler=elicited) as client:
        facts["tools"] = await all_tools(plan, client.list_tools)
        facts["prompts"] = [prompt.name for prompt in await client.list_prompts()]
        facts["said"] = [text_of((await client.call_tool(*call_of(call))).content) for call in plan["calls"]]
        facts["resource"] = (await client.read_resource(plan["resource"]))[0].text
        prompt = plan["prompt"]
        facts["prompt"] = said_by((await client.get_prompt(prompt["name"], prompt["arguments"])).messages)
        task = await call_tool_task(client, *call_of(plan["slow"]))
        facts["task"] = task.task_id
        await task.wait(timeout=120)
        facts["slow"] = text_of((await task.result()).content)
        facts["answered"] = text_of((await client.call_tool(*call_of(plan["ask"]))).content)


kind, address, plan_json = sys.argv[1:]
drive = fastmcp if kind == "fastmcp" else first if IS_FIRST else second
package = "fastmcp" if kind == "fastmcp" else "mcp"
line: Facts = {"client": package, "version": version(package), "task": None, "asked": 0}
asyncio.run(asyncio.wait_for(drive(line, json.loads(plan_json), address), TIME_LIMIT_S))
print(json.dumps(line))
