"""Drives a tool with FastMCP 4 and fastmcp-tasks, whose client knows extension tasks by itself.

See client_driver.py for the command line and the facts it prints.
"""

from importlib.metadata import version
from typing import Any

from client_driver import SAMPLED, Facts, Wire, filled, main, returned
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp_tasks import call_tool_task


async def drive(url: str, case: str, tool: str, arguments: dict[str, Any], wire: Wire) -> Facts:
    transport = StreamableHttpTransport(url, httpx_client_factory=wire.http_client)

    async def elicited(_message: str, _response_type: Any, params: Any, _context: Any) -> ElicitResult:
        if case == "decline":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=filled(params.requested_schema))

    async def sampled(*_: Any) -> str:
        return SAMPLED

    async with Client(transport, elicitation_handler=elicited, sampling_handler=sampled) as client:
        if case != "cancel":
            result = await client.call_tool(tool, arguments, raise_on_error=False)
            return returned(wire, result.content, result.is_error)
        task = await call_tool_task(client, tool, arguments)
        await task.status()
        await task.cancel()
        final = await task.wait(timeout=120)
        return {"outcome": final.status, "text": final.status_message or ""}


main("fastmcp", version("fastmcp"), drive)
