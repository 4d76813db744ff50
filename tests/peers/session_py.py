"""Drives a session with the client of the Python SDK 1 or 2. See session_driver.py for the command line."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from session_driver import Answers, Begun, OnProgress, Wire, is_older, main, types

VERSION = version("mcp")
IS_FIRST = VERSION.startswith("1.")


class Sdk:
    """The SDK's session object, which both versions have."""

    def __init__(self, session: Any, protocol: str) -> None:
        self.session, self.protocol = session, protocol

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Any:
        async def step(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress)

        result = await self.session.call_tool(tool, arguments, progress_callback=step if on_progress else None)
        return result.content, result.isError if IS_FIRST else result.is_error

    async def prompt(self, name: str) -> Any:
        return await self.session.get_prompt(name)

    async def subscribe(self, uri: str) -> Any:
        return await self.session.subscribe_resource(uri)

    async def set_level(self, level: str) -> Any:
        return await self.session.set_logging_level(level)

    async def cancel(self, call_id: Any) -> None:
        """With version 1 the host tells the server; version 2 does by itself when a waiting caller is cancelled."""
        if not IS_FIRST:
            return
        params = types.CancelledNotificationParams(requestId=call_id, reason="no longer needed")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(types.ClientNotification(notification))


class TaskSdk(Sdk):
    """Version 1, which knows tasks."""

    async def task(self, tool: str, arguments: dict[str, Any]) -> Any:
        """As its documentation has it: poll, and go for the result where input is wanted."""
        tasks = self.session.experimental
        task = (await tasks.call_tool_as_task(tool, arguments)).task.taskId
        async for state in tasks.poll_task(task):
            if state.status == "input_required":
                await tasks.get_task_result(task, types.CallToolResult)
        result = await tasks.get_task_result(task, types.CallToolResult)
        return result.content, result.isError, task, (await tasks.get_task(task)).status

    async def cancelled_task(self, tool: str, arguments: dict[str, Any], begun: Begun) -> Any:
        tasks = self.session.experimental
        task = (await tasks.call_tool_as_task(tool, arguments)).task.taskId
        await begun()
        return task, (await tasks.cancel_task(task)).status


@asynccontextmanager
async def open_session(url: str, wire: Wire, answers: Answers) -> AsyncIterator[Sdk]:
    handlers = {
        "sampling_callback": answers.sample, "elicitation_callback": answers.elicit,
        "list_roots_callback": answers.roots, "message_handler": answers.heard,
    }
    async with wire.http_client() as http_client:
        if is_older(url):
            transport = sse_client(url, httpx_client_factory=wire.http_client)
        else:
            transport = streamable_http_client(url, http_client=http_client)
        if not IS_FIRST:
            from mcp import Client

            async with Client(transport, mode="legacy", **handlers) as client:
                yield Sdk(client.session, client.session.protocol_version)
            return
        from mcp import ClientSession

        async with transport as (read, write, *_), ClientSession(read, write, **handlers) as session:
            yield TaskSdk(session, (await session.initialize()).protocolVersion)


main("mcp", VERSION, open_session)
