"""What the Python drivers of sessions share: the command line, the cases, and the line of facts.

    session_NAME.py URL CASE JSON [CASE JSON]...

A URL that ends with /sse is spoken to over HTTP+SSE.

The cases, what JSON gives and the facts are those of session_driver.mjs. It runs with the Python SDK 1 and 2,
whose modules differ in name: the drivers bring the client, this file reads along and compares plain JSON.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

try:  # The Python SDK 2
    import httpx2 as httpx
    import mcp_types as types
    from mcp import MCPError as ProtocolError
except ImportError:  # The Python SDK 1
    import httpx
    import mcp.types as types
    from mcp import McpError as ProtocolError
from mcp.shared._httpx_utils import create_mcp_http_client

TIME_LIMIT_S = 150
NOTICE_LIMIT_S = 20
POLL_S = 0.01
ANSWER_LIMIT_S = 0.5

Facts = dict[str, Any]
OnProgress = Callable[[float], None]
Begun = Callable[[], Awaitable[None]]


def is_older(url: str) -> bool:
    """Whether a URL is that of the older transport."""
    return url.endswith("/sse")


def plain(value: Any) -> Any:
    """A message as it stands on the wire."""
    return getattr(value, "root", value).model_dump(by_alias=True, mode="json", exclude_none=True)


class Bell:
    """Counts what comes and wakes who waits for it."""

    def __init__(self) -> None:
        self.count, self.last, self._rung = 0, None, asyncio.Event()

    def ring(self, value: Any = None) -> None:
        self.count, self.last = self.count + 1, value
        self._rung.set()

    async def rung(self, limit_s: float) -> bool:
        """Whether it has rung within that time."""
        try:
            await asyncio.wait_for(self._rung.wait(), limit_s)
        except TimeoutError:
            return False
        return True


@dataclass
class Wire:
    """Reads along with an unmodified client: session ids, the end of the session, resumed streams, ids of calls."""

    ids: list[str] = field(default_factory=list)
    resumed: int = 0
    deleted: int | None = None
    call_ids: list[Any] = field(default_factory=list)

    def http_client(self, headers=None, timeout=None, auth=None, **_) -> httpx.AsyncClient:
        client = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        client.event_hooks = {"request": [self._sent], "response": [self._received]}
        return client

    async def _sent(self, request: httpx.Request) -> None:
        body = json.loads(request.content) if request.method == "POST" else {}
        if isinstance(body, dict) and body.get("method") == "tools/call":
            self.call_ids.append(body["id"])

    async def _received(self, response: httpx.Response) -> None:
        session = response.headers.get("mcp-session-id")
        if session and session not in self.ids:
            self.ids.append(session)
        if response.request.method == "DELETE":
            self.deleted = response.status_code
        if "last-event-id" in response.request.headers and response.is_success:
            self.resumed += 1


class Session(Protocol):
    """One connected client; `call` returns the content and whether it is an error."""

    protocol: str

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Any: ...
    async def prompt(self, name: str) -> Any: ...
    async def subscribe(self, uri: str) -> Any: ...
    async def set_level(self, level: str) -> Any: ...
    async def cancel(self, call_id: Any) -> None: ...
    async def task(self, tool: str, arguments: dict[str, Any]) -> Any: ...
    async def cancelled_task(self, tool: str, arguments: dict[str, Any], begun: Begun) -> Any: ...


class Answers:
    """What the client answers when the server asks, and what it hears."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.asked = given.get("answer"), Bell()
        self._heard: dict[str, Callable[[dict[str, Any]], None]] = {}

    def on(self, method: str, show: Callable[[dict[str, Any]], Any]) -> Bell:
        bell = Bell()
        self._heard[method] = lambda params: bell.ring(show(params))
        return bell

    async def heard(self, message: Any) -> None:
        """The client's message handler: gets notifications, besides requests and errors."""
        method = getattr(getattr(message, "root", message), "method", None)
        if method in self._heard:
            self._heard[method](plain(message).get("params", {}))

    async def elicit(self, *_: Any) -> Any:
        self.asked.ring()
        return types.ElicitResult(action="accept", content=self.given)

    async def sample(self, *_: Any) -> Any:
        self.asked.ring()
        text = types.TextContent(type="text", text=self.given["text"])
        return types.CreateMessageResult(role="assistant", model=self.given["model"], content=text)

    async def roots(self, *_: Any) -> Any:
        self.asked.ring()
        return types.ListRootsResult(roots=[types.Root(**self.given)])


def returned(content: list[Any], is_error: bool) -> Facts:
    text = "\n".join(block.text for block in content if block.type == "text")
    return {"outcome": "tool_error" if is_error else "ok", "text": text}


class Cases:
    """One method for each case of the command line."""

    def __init__(self, session: Session, given: dict[str, Any], answers: Answers, wire: Wire) -> None:
        self.session, self.given, self.answers, self.wire = session, given, answers, wire

    async def call(self, **options: Any) -> Facts:
        return returned(*await self.session.call(self.given["tool"], self.given.get("arguments", {}), **options))

    async def fast(self) -> Facts:
        if self.given.get("server_asks_first"):
            await self.answers.asked.rung(NOTICE_LIMIT_S)
        return await self.call()

    tool_error = elicit = sample = roots = resume = delete = fast

    async def protocol_error(self) -> Facts:
        if "prompt" not in self.given:
            return await self.call()
        await self.session.prompt(self.given["prompt"])
        return {"outcome": "ok"}

    async def progress(self) -> Facts:
        steps = Bell()
        facts = await self.call(on_progress=steps.ring)
        return facts | {"notified": steps.count, "last": steps.last}

    held = progress  # These clients wait as long as it takes.

    async def subscribe(self) -> Facts:
        notices = self.answers.on("notifications/resources/updated", lambda params: params["uri"])
        await self.session.subscribe(self.given["uri"])
        return await self._provoke(notices)

    async def list_changed(self) -> Facts:
        name = self.given["notification"]
        return await self._provoke(self.answers.on(name, lambda _: name))

    async def log(self) -> Facts:
        notices = self.answers.on("notifications/message", lambda params: params["level"])
        await self.session.set_level(self.given["level"])
        return await self._provoke(notices)

    async def _provoke(self, notices: Bell) -> Facts:
        """Calls the tool that makes the server speak, again if it says so, until the notification is there."""
        deadline = time.monotonic() + NOTICE_LIMIT_S
        while True:
            facts = await self.call()
            if await notices.rung(self.given.get("again_after_ms", NOTICE_LIMIT_S * 1000) / 1000):
                return facts | {"notified": notices.count, "last": notices.last}
            if time.monotonic() > deadline:
                raise TimeoutError("the notification did not come")

    async def cancel(self) -> Facts:
        call = asyncio.ensure_future(self.call())
        async with asyncio.timeout(NOTICE_LIMIT_S):
            while not self.wire.call_ids:
                await asyncio.sleep(POLL_S)
        await self._begun()
        await self.session.cancel(self.wire.call_ids[0])
        # Servers may answer a cancelled call or stay silent: who cancelled it does not wait for that.
        await asyncio.wait([call], timeout=ANSWER_LIMIT_S)
        call.cancel()
        try:
            await call
            return {"outcome": "client_error", "text": "the call was answered although it was cancelled"}
        except (ProtocolError, asyncio.CancelledError) as error:
            cancelled = f"{type(error).__name__}: {error}"
        then = self.given["then"]
        return returned(*await self.session.call(then["tool"], then["arguments"])) | {"cancelled": cancelled}

    async def task(self) -> Facts:
        content, is_error, task, ended = await self.session.task(self.given["tool"], self.given.get("arguments", {}))
        return returned(content, is_error) | {"task": task, "ended": ended}

    task_ask = task

    async def task_cancel(self) -> Facts:
        given = self.given
        task, ended = await self.session.cancelled_task(given["tool"], given["arguments"], self._begun)
        then = given["then"]
        return returned(*await self.session.call(then["tool"], then["arguments"])) | {"task": task, "ended": ended}

    async def _begun(self) -> None:
        """Asks the server until it has begun the call."""
        begun = self.given["begun"]
        await self.session.call(begun["tool"], begun["arguments"])

    async def two_calls(self) -> Facts:
        first = await self.fast()
        if first["outcome"] != "ok":
            return first
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        second = await self.call()
        return second | {"text": f"{first['text']}\n{second['text']}", "session_kept": len(self.wire.ids) == 1}


CASES = [name for name in vars(Cases) if not name.startswith("_") and name != "call"]
Open = Callable[[str, Wire, Answers], AbstractAsyncContextManager[Session]]


async def _status_with_id(url: str, session: str, protocol: str) -> int:
    """The HTTP status of a request with a session's id."""
    headers = {
        "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session, "MCP-Protocol-Version": protocol,
    }
    body = {"jsonrpc": "2.0", "id": "after-the-end", "method": "tools/list", "params": {}}
    async with httpx.AsyncClient() as client, client.stream("POST", url, headers=headers, json=body) as response:
        return response.status_code


def _facts_of(error: BaseException) -> Facts:
    """An open connection wraps what passes through it into groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ProtocolError):
        return {"outcome": "protocol_error", "text": error.error.message, "code": error.error.code}
    return {"outcome": "client_error", "text": f"{type(error).__name__}: {error}"}


async def _drive(open_session: Open, url: str, case: str, given: dict[str, Any]) -> Facts:
    wire, answers = Wire(), Answers(given)
    facts: Facts = {}
    protocol = None
    try:
        async with asyncio.timeout(TIME_LIMIT_S), open_session(url, wire, answers) as session:
            protocol = session.protocol
            try:
                facts = await getattr(Cases(session, given, answers, wire), case)()
            except (ProtocolError, OSError, ValueError, RuntimeError) as error:
                facts = _facts_of(error)
        if case == "delete" and facts.get("outcome") == "ok":
            facts["deleted"] = wire.deleted
            facts["status"] = await _status_with_id(url, wire.ids[0], protocol)
    except Exception as error:
        # How a connection ends says nothing about a case that had its answer before, `delete` aside.
        if not facts or case == "delete":
            facts = _facts_of(error)
    return {"protocol": protocol, "asked": answers.asked.count, "resumed": wire.resumed} | facts


def main(client: str, version: str, open_session: Open) -> None:
    url, *given = sys.argv[1:] or [""]
    cases = list(zip(given[::2], given[1::2]))
    if not cases or len(given) % 2 or any(case not in CASES for case, _ in cases):
        sys.exit(f"usage: {sys.argv[0]} URL {'|'.join(CASES)} JSON [CASE JSON]...")
    failed = False
    for case, text in cases:
        signal.alarm(TIME_LIMIT_S + 5)  # ends the process even if its event loop is stuck
        started = time.monotonic()
        facts = asyncio.run(_drive(open_session, url, case, json.loads(text)))
        line = {"client": client, "version": version, "protocol": None, "outcome": None, "text": "", "code": None}
        print(json.dumps(line | facts | {"elapsed_ms": round((time.monotonic() - started) * 1000)}), flush=True)
        failed |= facts["outcome"] == "client_error"
    sys.exit(1 if failed else 0)
