"""Drives a session with the client of FastMCP 2, 3 or 4. See session_driver.py for the command line."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import SSETransport, StreamableHttpTransport
from session_driver import Answers, Begun, OnProgress, Wire, is_older, main

VERSION = version("fastmcp")
IS_FOURTH = VERSION.startswith("4.")
# FastMCP 4 would open with `server/discover`; the older ones know the handshake only.
MODE = {"mode": "legacy"} if IS_FOURTH else {}


class FastMcp:
    """FastMCP's client; what it lacks, hosts take from the SDK's session within it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        result = client.initialize_result
        self.protocol = result.protocol_version if IS_FOURTH else result.protocolVersion

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Any:
        async def step(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress)

        handler = {"progress_handler": step} if on_progress else {}
        result = await self.client.call_tool(tool, arguments, raise_on_error=False, **handler)
        return result.content, result.is_error

    async def task(self, tool: str, arguments: dict[str, Any]) -> Any:
        task = await self.client.call_tool(tool, arguments, task=True, raise_on_error=False)
        result = await task.result()
        return result.content, result.is_error, task.task_id, (await task.status()).status

    async def cancelled_task(self, tool: str, arguments: dict[str, Any], begun: Begun) -> Any:
        task = await self.client.call_tool(tool, arguments, task=True, raise_on_error=False)
        await begun()
        await task.cancel()
        return task.task_id, (await task.status()).status

    async def prompt(self, name: str) -> Any:
        return await self.client.get_prompt(name)

    async def subscribe(self, uri: str) -> Any:
        return await self.client.session.subscribe_resource(uri)

    async def set_level(self, level: str) -> Any:
        return await self.client.set_logging_level(level)

    async def cancel(self, call_id: Any) -> None:
        """FastMCP 4 tells the server by itself when a waiting caller is cancelled."""
        if not IS_FOURTH:
            await self.client.cancel(call_id, "no longer needed")


@asynccontextmanager
async def open_session(url: str, wire: Wire, answers: Answers) -> AsyncIterator[FastMcp]:
    async def elicit(*_: Any) -> Any:
        return (await answers.elicit()).content

    async def roots(*_: Any) -> Any:
        return (await answers.roots()).roots

    over = SSETransport if is_older(url) else StreamableHttpTransport
    transport = over(url, httpx_client_factory=wire.http_client)
    client = Client(
        transport, sampling_handler=answers.sample, elicitation_handler=elicit, roots=roots,
        message_handler=answers.heard, **MODE,
    )
    async with client:
        yield FastMcp(client)


main("fastmcp", VERSION, open_session)
