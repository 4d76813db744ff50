"""Makes calls under ids of its own (SEP-1686) with the client of the Python SDK 1, which does not know the draft: by its
public request calls, with `_meta` made by hand.

    draft_py1.py URL SLOW ARGUMENTS FAILING ARGUMENTS ASKING ARGUMENTS

SLOW takes some seconds, FAILING ends with an error, ASKING asks for a name. Prints one line `facts JSON`.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from importlib.metadata import version
from typing import Any

import httpx
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client

TASK = "modelcontextprotocol.io/task"
RELATED = "modelcontextprotocol.io/related-task"
# The SDK logs a page about each notification that it does not know.
logging.disable(logging.WARNING)
PAUSE_S = 0.05
TIME_LIMIT_S = 150

Tool = tuple[str, dict[str, Any]]


class AnyResult(types.Result):
    """Whatever a method answers."""


AnyRequest = types.Request[dict[str, Any], str]


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


async def code_of(answer: Awaitable[Any]) -> Any:
    try:
        await answer
    except McpError as error:
        return error.error.code
    return "answered"


class Driver:
    def __init__(self, session: ClientSession, calls: dict[str, Any]) -> None:
        # The request of each call by its task's id, as it was seen to leave.
        self.session, self.calls = session, calls

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = AnyRequest(method=method, params=params)
        result = await self.session.send_request(request, AnyResult)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def about(self, method: str, task: str) -> dict[str, Any]:
        return await self.request(f"tasks/{method}", {"taskId": task})

    async def call(self, task: str, tool: Tool) -> dict[str, Any]:
        meta = {TASK: {"taskId": task, "keepAlive": 60_000}}
        return await self.request("tools/call", {"name": tool[0], "arguments": tool[1], "_meta": meta})

    async def begun(self, task: str, tool: Tool) -> asyncio.Task[dict[str, Any]]:
        """A call whose task is there. The SDK passes on no notification that it does not know."""
        answer = asyncio.create_task(self.call(task, tool))
        while await code_of(self.about("get", task)) != "answered":
            await asyncio.sleep(PAUSE_S)
        return answer

    async def waited(self, tool: Tool) -> dict[str, Any]:
        answer = await self.begun("mine 1", tool)
        running = await self.about("get", "mine 1")
        early = await code_of(self.about("result", "mine 1"))
        again = await code_of(self.call("mine 1", tool))
        result = await answer
        facts = {
            "running": running["status"],
            "keepAlive": running["keepAlive"],
            "early": early,
            "again": again,
            "text": text_of(result),
            "related": result["_meta"][RELATED]["taskId"],
            "same": await self.about("result", "mine 1") == result,
            "status": (await self.about("get", "mine 1"))["status"],
            "listed": [task["taskId"] for task in (await self.request("tasks/list", {}))["tasks"]],
        }
        await self.about("delete", "mine 1")
        return facts | {"deleted": await code_of(self.about("get", "mine 1"))}

    async def cancelled(self, tool: Tool) -> Any:
        answer = await self.begun("mine 2", tool)
        params = types.CancelledNotificationParams(requestId=self.calls["mine 2"], reason="no longer needed")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(types.ClientNotification(notification))
        while (await self.about("get", "mine 2"))["status"] != "cancelled":
            await asyncio.sleep(PAUSE_S)
        answer.cancel()
        return await code_of(self.about("result", "mine 2"))

    async def failed(self, tool: Tool) -> dict[str, Any]:
        result = await self.call("mine 3", tool)
        status = (await self.about("get", "mine 3"))["status"]
        return {"isError": result["isError"], "text": text_of(result), "status": status}


async def main(url: str, *given: str) -> None:
    asked: list[Any] = []
    calls: dict[str, Any] = {}

    async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        meta = params.meta.model_dump(by_alias=True) if params.meta else {}
        asked.append(meta.get(RELATED, {}).get("taskId"))
        return types.ElicitResult(action="accept", content={"value": "Ada"})

    async def leaving(request: httpx.Request) -> None:
        message = json.loads(request.content or "{}")
        if message.get("method") == "tools/call":
            calls[message["params"]["_meta"][TASK]["taskId"]] = message["id"]

    slow, fail, ask = zip(given[::2], (json.loads(text) for text in given[1::2]))
    async with (
        asyncio.timeout(TIME_LIMIT_S),
        httpx.AsyncClient(event_hooks={"request": [leaving]}, timeout=TIME_LIMIT_S) as http_client,
        streamable_http_client(url, http_client=http_client) as (read, write, *_),
        ClientSession(read, write, elicitation_callback=elicit) as session,
    ):
        protocol = (await session.initialize()).protocolVersion
        driver = Driver(session, calls)
        facts = {
            "version": version("mcp"),
            "protocol": protocol,
            "waited": await driver.waited(slow),
            "cancelled": await driver.cancelled(slow),
            "failed": await driver.failed(fail),
            "asked": {"text": text_of(await driver.call("mine 4", ask)), "of": asked},
        }
    print("facts " + json.dumps(facts), flush=True)


asyncio.run(main(*sys.argv[1:]))
