"""What the Python client drivers share: the command line, the line of facts, and a view of the wire.

    client_NAME.py URL CASE TOOL ARGUMENTS_JSON

prints one JSON line of facts on stdout; CASE is `call` (drive the call to its end, through a task if
the server answers with one, and answer what is asked), `decline` (the same for a user who declines) or
`cancel` (cancel the task after its first poll, then look at it).
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp import MCPError
from mcp.shared._httpx_utils import create_mcp_http_client

TIME_LIMIT_S = 150
WATCHED = ("tools/call", "tasks/get")


@dataclass
class Wire:
    """Reads along with an unmodified client: which answers to tools/call and tasks/get came."""

    task: bool = False
    polls: int = 0
    statuses: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def http_client(self, headers=None, timeout=None, auth=None, **_) -> httpx2.AsyncClient:
        client = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        client.event_hooks = {"response": [self._read]}
        return client

    async def _read(self, response: httpx2.Response) -> None:
        if response.request.method != "POST":
            return
        method = json.loads(response.request.content).get("method")
        kind = response.headers.get("content-type", "")
        streamed = kind.startswith("text/event-stream")
        # A streamed tools/call is left to the client: reading it here would hold back its progress.
        if method not in WATCHED or (streamed and method == "tools/call"):
            return
        body = (await response.aread()).decode()
        lines = [line[5:] for line in body.splitlines() if line.startswith("data:")] if streamed else [body]
        for message in (json.loads(line) for line in lines if line.strip()):
            self._note(method, message.get("result"))

    def _note(self, method: str, result: dict[str, Any] | None) -> None:
        self.polls += method == "tasks/get"
        if result is None or "taskId" not in result:
            return
        self.task = True
        self.error = result.get("error")
        if self.statuses[-1:] != [result["status"]]:
            self.statuses.append(result["status"])


Facts = dict[str, Any]
Drive = Callable[[str, str, str, dict[str, Any], Wire], Awaitable[Facts]]


SAMPLED = "said by the model"


def filled(schema: dict[str, Any]) -> dict[str, Any]:
    """A form with what it requires."""
    properties = schema["properties"]
    return {name: True if properties[name]["type"] == "boolean" else "Ada" for name in schema.get("required", [])}


def text_of(content: list[Any]) -> str:
    return "\n".join(block.text for block in content if block.type == "text")


def returned(wire: Wire, content: list[Any], is_error: bool) -> Facts:
    """The facts of a call that came back: clients show a failed or cancelled task as a tool error."""
    text = text_of(content)
    final = wire.statuses[-1] if wire.statuses else None
    if is_error and final == "failed":
        return {"outcome": "protocol_error", "text": text, "code": (wire.error or {}).get("code")}
    if is_error and final == "cancelled":
        return {"outcome": "cancelled", "text": text}
    return {"outcome": "tool_error" if is_error else "result", "text": text}


def _cause(error: BaseException) -> BaseException:
    """The error itself: an open connection wraps what passes through it into groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _facts(drive: Drive, wire: Wire, argv: list[str]) -> Facts:
    url, case, tool, arguments = argv
    try:
        return await asyncio.wait_for(drive(url, case, tool, json.loads(arguments), wire), TIME_LIMIT_S)
    except Exception as caught:
        error = _cause(caught)
        if isinstance(error, MCPError):
            return {"outcome": "protocol_error", "text": error.message, "code": error.code}
        return {"outcome": "client_error", "text": f"{type(error).__name__}: {error}"}


def main(client: str, version: str, drive: Drive) -> None:
    if len(sys.argv) != 5 or sys.argv[2] not in ("call", "decline", "cancel"):
        sys.exit(f"usage: {sys.argv[0]} URL call|cancel TOOL ARGUMENTS_JSON")
    signal.alarm(TIME_LIMIT_S + 5)  # ends the process even if its event loop is stuck
    wire, started = Wire(), time.monotonic()
    facts = asyncio.run(_facts(drive, wire, sys.argv[1:]))
    line = {
        "client": client, "version": version, "outcome": None, "text": "", "code": None,
        "task": wire.task, "polls": wire.polls if wire.task else None, "statuses": wire.statuses,
        "elapsed_ms": round((time.monotonic() - started) * 1000),
    }
    print(json.dumps(line | facts), flush=True)
    sys.exit(1 if facts["outcome"] == "client_error" else 0)
