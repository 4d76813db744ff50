"""Logs in with the Python SDK 2, headless, and calls tools as tasks.

    python login_py.py JSON      {url, flow, user, steps; issuer, identity, signer, mode, key, cookie}

Steps and facts are those of login_ts.mjs, from `tools` to `peek` in `facts_of`. The SDK knows no tasks: `task` sends the requests of
2026-07-28 by hand, and `toolTask` follows a call by the gateway's tools for tasks. Flows: those of `login_of`.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.oauth2 import AuthorizationCodeResult
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

DOCUMENT = "https://client.example/taskgate-peer.json"
REDIRECT = "http://127.0.0.1:1/callback"
HOPS_MAX = 12
WAITS_MAX = 120
POLLS_MAX = 300
TYPE = "urn:ietf:params:oauth:token-type:"
VERSION = "2026-07-28"


class Storage:
    """Keeps tokens and the client's registration, as a host does."""

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
    """A browser without a window, whose user the authorization server knows by `login_hint`."""

    def __init__(self, user: str, cookie: str | None) -> None:
        self.user = user
        self.cookie = cookie
        self.logins = 0
        self.returned: dict[str, str] = {}

    async def open(self, address: str) -> None:
        """Follows an authorization to its end; `returned` then holds the parameters of the callback."""
        self.logins += 1
        cookies = dict([self.cookie.split("=")]) if self.cookie else {}
        async with httpx2.AsyncClient(follow_redirects=False, cookies=cookies) as client:
            at = httpx2.URL(address).copy_merge_params({"login_hint": self.user})
            for _ in range(HOPS_MAX):
                response = await client.get(at)
                location = response.headers.get("location")
                if location is None:
                    raise RuntimeError(f"HTTP {response.status_code} at {at}: {response.text}")
                at = at.join(location)
                # glewlwyd's page of logins: it is a program, and this is its last step.
                if at.path == "/login.html":
                    at = httpx2.URL(at.params["callback_url"]).copy_merge_params({"g_continue": ""})
                if str(at).startswith(REDIRECT):
                    self.returned = {name: values[0] for name, values in parse_qs(urlsplit(str(at)).query).items()}
                    return
        raise RuntimeError(f"the authorization has more than {HOPS_MAX} redirects")

    async def result(self) -> AuthorizationCodeResult:
        found = self.returned
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))


class IdentityProvider:
    """The company's identity provider, where a host logs its user in: the SDK leaves this to hosts."""

    def __init__(self, issuer: str, browser: Browser) -> None:
        self.issuer = issuer
        self.browser = browser
        self.identity: str | None = None

    async def post(self, fields: dict[str, str]) -> dict[str, Any]:
        async with httpx2.AsyncClient(auth=httpx2.BasicAuth("app", "app-password")) as http:
            response = await http.post(f"{self.issuer}/token", data=fields)
            response.raise_for_status()
            return response.json()

    async def log_in(self) -> None:
        verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = {"client_id": "app", "response_type": "code", "redirect_uri": REDIRECT, "scope": "openid"}
        query |= {"code_challenge": challenge, "code_challenge_method": "S" + "256"}
        await self.browser.open(str(httpx2.URL(f"{self.issuer}/auth").copy_merge_params(query)))
        fields = {"grant_type": "authorization_code", "code": self.browser.returned["code"]}
        tokens = await self.post(fields | {"redirect_uri": REDIRECT, "code_verifier": verifier})
        self.identity = tokens["id_token"]

    async def assertion(self, audience: str, resource: str) -> str:
        assert self.identity is not None
        fields = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "requested_token_type": f"{TYPE}id-jag"}
        fields |= {"subject_token": self.identity, "subject_token_type": f"{TYPE}id_token"}
        return (await self.post(fields | {"audience": audience, "resource": resource, "scope": "mcp"}))["access_token"]


async def login_of(wanted: dict[str, Any], storage: Storage, browser: Browser) -> httpx2.Auth:
    url, issuer, flow = wanted["url"], wanted.get("issuer"), wanted["flow"]
    match flow:
        case "credentials":
            return ClientCredentialsOAuthProvider(url, storage, "machine", "machine-password", issuer=issuer)
        case "signed":
            signed = SignedJWTParameters(issuer="signer", subject="signer", signing_key=wanted["signer"])
            return PrivateKeyJWTOAuthProvider(url, storage, "signer", signed.create_assertion_provider(), issuer=issuer)
        case "assertion":
            identity = IdentityProvider(wanted["identity"], browser)
            await identity.log_in()
            return IdentityAssertionOAuthProvider(
                url, storage, "app", "app-password", issuer, identity.assertion,
                token_endpoint_auth_method="client_secret_basic",
            )
        case "registration" | "document" | "known":
            metadata = OAuthClientMetadata(
                client_name="taskgate peer",
                redirect_uris=[REDIRECT],
                grant_types=["authorization_code", "refresh_token"],
                token_endpoint_auth_method="none",
            )
            document = DOCUMENT if flow == "document" else None
            if flow == "known":
                storage.client = OAuthClientInformationFull(client_id="desk", redirect_uris=[REDIRECT], token_endpoint_auth_method="none")
            return OAuthClientProvider(url, metadata, storage, browser.open, browser.result, document)
        case _:
            raise ValueError(f"no flow {flow}")


class Driver:
    """Does the steps with a client, and without it the requests that the client does not know."""

    def __init__(self, url: str, client: Client, http: httpx2.AsyncClient) -> None:
        self.url = url
        self.client = client
        self.http = http

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Sends one request of 2026-07-28."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            "Mcp-Name": params.get("name") or params["taskId"],
        }
        text = (await self.http.post(self.url, json=body, headers=headers)).text
        events = [line[5:] for line in text.splitlines() if line.startswith("data:")]
        return json.loads(events[-1] if events else text)

    async def task(self, tool: str, ms: int) -> dict[str, Any]:
        made = await self.ask("tools/call", {"name": tool, "arguments": {"ms": ms}})
        task_id = made["result"]["taskId"]
        for _ in range(POLLS_MAX):
            result = (await self.ask("tasks/get", {"taskId": task_id}))["result"]
            if result["status"] != "working":
                data = result.get("error", {}).get("data", {})
                text = result["result"]["content"][0]["text"] if "result" in result else None
                ended = {"text": text, "reason": data.get("reason"), "executed": data.get("executed")}
                return {"taskId": task_id, "status": result["status"], **ended}
            await asyncio.sleep(0.1)
        raise RuntimeError("the task does not end")

    async def tool_task(self, tool: str, ms: int) -> dict[str, Any]:
        result = await self.client.call_tool(tool, {"ms": ms})
        if result.structured_content is None:
            raise RuntimeError(f"no task: {result}")
        task, polls = result.structured_content["taskId"], 0
        while (result.structured_content or {}).get("status") == "working" and polls < WAITS_MAX:
            result = await self.client.call_tool("task_result", {"id": task, "wait_seconds": 1})
            polls += 1
        status = "failed" if result.is_error else "completed"
        return {"status": status, "text": result.content[0].text, "polls": polls}

    async def facts_of(self, step: dict[str, Any]) -> dict[str, Any]:
        match step:
            case {"tools": _}:
                return {"tools": [tool.name for tool in (await self.client.list_tools()).tools]}
            case {"call": tool}:
                return {"text": (await self.client.call_tool(tool, {})).content[0].text}
            case {"task": tool, "ms": ms}:
                return await self.task(tool, ms)
            case {"toolTask": tool, "ms": ms}:
                return await self.tool_task(tool, ms)
            case {"peek": task_id}:
                answer = await self.ask("tasks/get", {"taskId": task_id})
                error = answer.get("error", {})
                status = answer.get("result", {}).get("status")
                return {"status": status, "code": error.get("code"), "message": error.get("message")}
            case {"sleep": ms}:
                await asyncio.sleep(ms / 1000)
                return {}
            case _:
                raise ValueError(f"no step {step}")


async def main(wanted: dict[str, Any]) -> None:
    url, storage, browser = wanted["url"], Storage(), Browser(wanted.get("user", ""), wanted.get("cookie"))
    login = await login_of(wanted, storage, browser)
    headers = {"X-Taskgate-Key": wanted["key"]} if "key" in wanted else {}
    async with httpx2.AsyncClient(auth=login, headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=wanted.get("mode", "auto")) as client:
            driver = Driver(url, client, http)
            for step in wanted["steps"]:
                facts = await driver.facts_of(step)
                scheme = storage.tokens.token_type if storage.tokens else None
                counts = {"logins": browser.logins, "tokens": storage.count, "scheme": scheme}
                print("facts", json.dumps({**facts, **counts}), flush=True)


asyncio.run(main(json.loads(sys.argv[1])))
