"""Logs in with the Python SDK 2, headless, and uses a server behind OAuth.

    python oauth_py.py URL USER legacy|auto STEPS_JSON

Steps and facts are those of oauth_ts.mjs.
"""

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import AuthorizationCodeResult
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

VERSION = "2026-07-28"
REDIRECT = "http://127.0.0.1:1/callback"
HOPS_MAX = 12
POLLS_MAX = 200


class Storage:
    """What a host would keep."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.count = 0

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.count += 1
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Follows an authorization to its end, as a browser would whose user is known."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.logins = 0
        self.returned: dict[str, list[str]] = {}

    async def open(self, address: str) -> None:
        self.logins += 1
        async with httpx2.AsyncClient(follow_redirects=False) as client:
            at = httpx2.URL(address).copy_merge_params({"login_hint": self.user})
            for _ in range(HOPS_MAX):
                response = await client.get(at)
                location = response.headers.get("location")
                if location is None:
                    raise RuntimeError(f"HTTP {response.status_code} at {at}: {response.text}")
                at = at.join(location)
                if str(at).startswith(REDIRECT):
                    self.returned = parse_qs(urlsplit(str(at)).query)
                    return
        raise RuntimeError("the authorization does not end")

    async def result(self) -> AuthorizationCodeResult:
        one = {name: values[0] for name, values in self.returned.items()}
        return AuthorizationCodeResult(code=one["code"], state=one.get("state"), iss=one.get("iss"))


async def ask(http: httpx2.AsyncClient, url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """One request of 2026-07-28 by hand, since the client knows no tasks; its login does the rest."""
    capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Mcp-Name": params.get("name") or params["taskId"],
    }
    said = (await http.post(url, json=body, headers=headers)).text
    events = [line[5:] for line in said.splitlines() if line.startswith("data:")]
    return json.loads(events[-1] if events else said)


async def task(http: httpx2.AsyncClient, url: str, tool: str, ms: int) -> dict[str, Any]:
    made = await ask(http, url, "tools/call", {"name": tool, "arguments": {"ms": ms}})
    task_id = made["result"]["taskId"]
    for _ in range(POLLS_MAX):
        result = (await ask(http, url, "tasks/get", {"taskId": task_id}))["result"]
        if result["status"] != "working":
            data = result.get("error", {}).get("data", {})
            text = result["result"]["content"][0]["text"] if "result" in result else None
            told = {"text": text, "reason": data.get("reason"), "executed": data.get("executed")}
            return {"taskId": task_id, "status": result["status"], **told}
        await asyncio.sleep(0.1)
    raise RuntimeError("the task does not end")


async def step(client: Client, http: httpx2.AsyncClient, url: str, wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted.get("tools"):
        return {"tools": [tool.name for tool in (await client.list_tools()).tools]}
    if wanted.get("whoami"):
        return {"text": (await client.call_tool("whoami", {})).content[0].text}
    if "task" in wanted:
        return await task(http, url, wanted["task"], wanted["ms"])
    if "peek" in wanted:
        answer = await ask(http, url, "tasks/get", {"taskId": wanted["peek"]})
        error = answer.get("error", {})
        status = answer.get("result", {}).get("status")
        return {"status": status, "code": error.get("code"), "message": error.get("message")}
    await asyncio.sleep(wanted["sleep"] / 1000)
    return {}


async def main(url: str, user: str, mode: str, steps: list[dict[str, Any]]) -> None:
    storage, browser = Storage(), Browser(user)
    metadata = OAuthClientMetadata(
        client_name="taskgate peer",
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
        scope="mcp offline_access",
    )
    login = OAuthClientProvider(url, metadata, storage, browser.open, browser.result)
    key = os.environ.get("PEER_KEY")
    headers = {"X-Taskgate-Key": key} if key else {}
    async with httpx2.AsyncClient(auth=login, headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            for wanted in steps:
                facts = await step(client, http, url, wanted)
                counts = {"logins": browser.logins, "refreshes": storage.count - browser.logins}
                print("facts", json.dumps({**facts, **counts}), flush=True)


if len(sys.argv) != 5 or sys.argv[3] not in ("legacy", "auto"):
    sys.exit("usage: oauth_py.py URL USER legacy|auto STEPS_JSON")
asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])))
