"""An authorization server by Debian's glewlwyd, for gateways that check tokens themselves.

    python login_glewlwyd.py PROGRAM FOLDER TOKEN_SECONDS RESOURCE...

writes its database and configuration into FOLDER and becomes that program, for tokens of each RESOURCE with the scope `mcp`. Its clients are
`machine` with the password `machine-password`, which may also ask about tokens, and `desk`, which has no password, for the code flow. A second
process sets it up through its API, prints `user COOKIE` for a person who is logged in and consented to `desk`, then `as URL`, and ends.
"""

import os
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

program, folder, seconds, *resources = sys.argv[1:]
usr = Path(program).resolve().parent.parent
plugins = usr / "lib/glewlwyd"
REDIRECT = "http://127.0.0.1:1/callback"
START_SECONDS_MAX = 30

with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
origin = f"http://127.0.0.1:{port}"

CONFIGURATION = f"""
port={port}
bind_address="127.0.0.1"
external_url="{origin}"
login_url="login.html"
api_prefix="api"
log_mode="console"
log_level="WARNING"
cookie_domain="127.0.0.1"
cookie_secure=0
session_expiration=2419200
session_key="GLEWLWYD2_SESSION_ID"
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="{plugins}/user"
user_middleware_module_path="{plugins}/user_middleware"
client_module_path="{plugins}/client"
user_auth_scheme_module_path="{plugins}/scheme"
plugin_module_path="{plugins}/plugin"
use_secure_connection=false
secure_connection_key_file="unused"
secure_connection_pem_file="unused"
hash_algorithm="SHA512"
database = {{ type = "sqlite3" path = "{folder}/glewlwyd.db" }};
"""


def keys() -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return {"key": private.decode(), "cert": public.decode()}


def plugin() -> dict[str, Any]:
    flags = ["auth-type-client-enabled", "auth-type-code-enabled", "auth-type-refresh-enabled", "allow-non-oidc", "jwks-show"]
    flags += ["introspection-revocation-allowed", "introspection-revocation-allow-target-client", "resource-allowed"]
    flags += ["pkce-allowed", "oauth-dpop-allowed"]
    parameters = {name: True for name in flags} | keys() | {
        "iss": f"{origin}/api/oidc",
        "jwt-type": "ecdsa",
        "jwt-key-size": "256",
        "access-token-duration": int(seconds),
        "refresh-token-duration": 1_209_600,
        "code-duration": 600,
        "allowed-scope": ["openid", "mcp"],
        "introspection-revocation-auth-scope": [],
        "oauth-dpop-iat-duration": 600,
        "resource-scope": {"mcp": resources},
        "resource-change-allowed": False,
    }
    named = {"module": "oidc", "name": "oidc", "display_name": "oidc", "order_rank": 0, "readonly": False}
    return named | {"parameters": parameters}


def client(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"client_id": name, "name": name, "enabled": True, "scope": ["mcp"], "resource": resources} | more


MACHINE = client("machine", {
    "client_secret": "machine-password",
    "confidential": True,
    "authorization_type": ["client_credentials"],
    "token_endpoint_auth_method": ["client_secret_basic"],
})
DESK = client("desk", {
    "confidential": False,
    "authorization_type": ["code", "refresh_token"],
    "token_endpoint_auth_method": ["none"],
    "redirect_uri": [REDIRECT],
})
PERSON = {"username": "ada", "password": "ada-password"}


def set_up() -> None:
    with httpx2.Client(base_url=f"{origin}/api") as http:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                http.post("/auth/", json={"username": "admin", "password": "password"}).raise_for_status()
                break
            except httpx2.TransportError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        scope = {"name": "mcp", "display_name": "mcp", "password_required": False, "scheme": {}}
        person = PERSON | {"name": "Ada", "enabled": True, "scope": ["mcp", "g_profile"]}
        for path, body in [("scope", scope), ("mod/plugin", plugin()), ("client", MACHINE), ("client", DESK), ("user", person)]:
            answer = http.post(f"/{path}/", json=body)
            if not answer.is_success:
                raise RuntimeError(f"HTTP {answer.status_code} at {path}: {answer.text}")
    with httpx2.Client(base_url=f"{origin}/api") as http:
        http.post("/auth/", json=PERSON).raise_for_status()
        http.put("/auth/grant/desk", json={"scope": "mcp"}).raise_for_status()
        [(name, value)] = http.cookies.items()
        print(f"user {name}={value}", flush=True)
    print(f"as {origin}/api/oidc", flush=True)


Path(folder, "glewlwyd.conf").write_text(CONFIGURATION)
tables = next((usr / "share/dbconfig-common/data/glewlwyd/install").glob("sqlite3*"))
with sqlite3.connect(f"{folder}/glewlwyd.db") as database:
    database.executescript(tables.read_text())
if os.fork() == 0:
    set_up()
    os._exit(0)
# Its libraries lie beside it where its packages were unpacked.
libraries = ":".join(str(found) for found in (usr / "lib").glob("*-linux-gnu"))
os.execve(program, [program, f"--config-file={folder}/glewlwyd.conf"], {**os.environ, "LD_LIBRARY_PATH": libraries})
