"""Logs in at a gateway with the Python SDK 2, headless, and follows a slow call by the tools that stand in for tasks, while
its token expires.

    python login_py.py JSON      {url, issuer, identity, flow, user, tool, ms, signer}

prints `facts JSON` as login_ts.mjs. Flows: those of `login_of`.
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
TYPE = "urn:ietf:params:oauth:token-type:"


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
        self.returned: dict[str, str] = {}

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
                    self.returned = {name: values[0] for name, values in parse_qs(urlsplit(str(at)).query).items()}
                    return
        raise RuntimeError("the authorization does not end")

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
    url, issuer, flow = wanted["url"], wanted["issuer"], wanted["flow"]
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
        case "registration" | "step-up" | "document":
            metadata = OAuthClientMetadata(
                client_name="taskgate peer",
                redirect_uris=[REDIRECT],
                grant_types=["authorization_code", "refresh_token"],
                token_endpoint_auth_method="none",
            )
            document = None if flow == "registration" else DOCUMENT
            return OAuthClientProvider(url, metadata, storage, browser.open, browser.result, document)
        case _:
            raise ValueError(f"no flow {flow}")


async def drive(client: Client, tool: str, ms: int) -> dict[str, Any]:
    tools = [listed.name for listed in (await client.list_tools()).tools]
    result = await client.call_tool(tool, {"ms": ms})
    if result.structured_content is None:
        raise RuntimeError(f"no task: {result}")
    task, polls = result.structured_content["taskId"], 0
    while (result.structured_content or {}).get("status") == "working" and polls < WAITS_MAX:
        result = await client.call_tool("task_result", {"id": task, "wait_seconds": 1})
        polls += 1
    status = "failed" if result.is_error else "completed"
    return {"tools": tools, "status": status, "text": result.content[0].text, "polls": polls}


async def main(wanted: dict[str, Any]) -> None:
    storage, browser = Storage(), Browser(wanted["user"])
    login = await login_of(wanted, storage, browser)
    async with httpx2.AsyncClient(auth=login, timeout=60) as http:
        async with Client(streamable_http_client(wanted["url"], http_client=http), mode="auto") as client:
            facts = await drive(client, wanted["tool"], wanted["ms"])
            scheme = storage.tokens.token_type if storage.tokens else None
            print("facts", json.dumps({**facts, "logins": browser.logins, "tokens": storage.count, "scheme": scheme}), flush=True)


asyncio.run(main(json.loads(sys.argv[1])))
