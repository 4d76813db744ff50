"""Installs taskgate in front of six real servers, in the file of each of ten desktop hosts.

    hosts.py TASKGATE FOLDER NAME COMMAND... [-- NAME COMMAND...]...

writes each host's file below FOLDER, runs `taskgate install`, starts each server as the host would, and expects the tools of the server
without taskgate. `taskgate uninstall` must give the first bytes back. Prints one line per host.
"""

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from mcp import Client, StdioServerParameters

Servers = dict[str, list[str]]
START_MAX_S = 60


def started_by(entry: dict[str, Any], program: str = "command") -> list[str]:
    return [entry[program], *entry.get("args", [])]


def json_below(key: str, **fixed: str) -> tuple[Callable[[Servers], str], Callable[[str], Servers]]:
    """A host whose file is JSON, with the servers in one object."""

    def write(servers: Servers) -> str:
        entries = {name: {**fixed, "command": command[0], "args": command[1:]} for name, command in servers.items()}
        return json.dumps({key: entries}, indent=2) + "\n"

    return write, lambda text: {name: started_by(entry) for name, entry in json.loads(text)[key].items()}


def write_goose(servers: Servers) -> str:
    entries = {
        name: {"enabled": True, "name": name, "type": "stdio", "cmd": command[0], "args": command[1:], "envs": {}}
        for name, command in servers.items()
    }
    return yaml.safe_dump({"extensions": entries})


def read_goose(text: str) -> Servers:
    return {name: started_by(entry, "cmd") for name, entry in yaml.safe_load(text)["extensions"].items()}


def write_codex(servers: Servers) -> str:
    # A JSON string is a TOML string.
    entries = (
        f"[mcp_servers.{name}]\ncommand = {json.dumps(command[0])}\nargs = {json.dumps(command[1:])}\n"
        for name, command in servers.items()
    )
    return "\n".join(entries)


def read_codex(text: str) -> Servers:
    return {name: started_by(entry) for name, entry in tomllib.loads(text)["mcp_servers"].items()}


def write_librechat(servers: Servers) -> str:
    entries = {name: {"command": command[0], "args": command[1:]} for name, command in servers.items()}
    return yaml.safe_dump({"version": "1.2.8", "mcpServers": entries})


def read_librechat(text: str) -> Servers:
    return {name: started_by(entry) for name, entry in yaml.safe_load(text)["mcpServers"].items()}


# Each host, the place of its file below the home folder (the last one's: below the project), and its shape.
HOSTS = [
    ("claude-desktop", ".config/Claude/claude_desktop_config.json", json_below("mcpServers")),
    ("claude-code", ".claude.json", json_below("mcpServers", type="stdio")),
    ("vscode", ".config/Code/User/mcp.json", json_below("servers", type="stdio")),
    ("cursor", ".cursor/mcp.json", json_below("mcpServers")),
    ("windsurf", ".codeium/windsurf/mcp_config.json", json_below("mcpServers")),
    ("gemini", ".gemini/settings.json", json_below("mcpServers")),
    ("zed", ".config/zed/settings.json", json_below("context_servers", source="custom")),
    ("goose", ".config/goose/config.yaml", (write_goose, read_goose)),
    ("codex", ".codex/config.toml", (write_codex, read_codex)),
    ("librechat", "librechat.yaml", (write_librechat, read_librechat)),
]


async def tools_of(command: list[str], environment: dict[str, str]) -> list[str]:
    """The names of a server's tools, through all pages."""
    names: list[str] = []
    cursor = None
    async with Client(StdioServerParameters(command=command[0], args=command[1:], env=environment)) as client:
        while True:
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return sorted(names)


async def listed(servers: Servers, environment: dict[str, str]) -> dict[str, list[str]]:
    found = await asyncio.gather(*(asyncio.wait_for(tools_of(one, environment), START_MAX_S) for one in servers.values()))
    return dict(zip(servers, found, strict=True))


def check_host(taskgate: str, home: Path, host: tuple[str, str, Any], servers: Servers, direct: dict[str, list[str]]) -> None:
    name, place, (write, read) = host
    file = home / place
    file.parent.mkdir(parents=True, exist_ok=True)
    first = write(servers)
    file.write_text(first)
    environment = {**os.environ, "HOME": str(home)}
    for variable in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        environment.pop(variable, None)

    def run(*arguments: str) -> None:
        subprocess.run([taskgate, *arguments], check=True, cwd=home, env=environment, stdout=subprocess.DEVNULL)

    run("install", name, "--yes")
    wrapped = read(file.read_text())
    for server, command in wrapped.items():
        if command[1] != "wrap" or command[-len(servers[server]) :] != servers[server]:
            sys.exit(f"{name}: {server} is started by {command}")
    through = asyncio.run(listed(wrapped, environment))
    if through != direct:
        sys.exit(f"{name}: the tools are {through}, without taskgate {direct}")
    run("uninstall", name, "--yes")
    if file.read_text() != first:
        sys.exit(f"{name}: uninstall left {file.read_text()}")
    print(f"{name}: {len(through)} servers with {sum(map(len, through.values()))} tools; the file has its first bytes again")


def main() -> None:
    taskgate, folder, *words = sys.argv[1:]
    named = [list(group) for is_end, group in groupby(words, lambda word: word == "--") if not is_end]
    servers = {name: command for name, *command in named}
    direct = asyncio.run(listed(servers, dict(os.environ)))
    if not all(direct.values()):
        sys.exit(f"a server has no tools: {direct}")
    for host in HOSTS:
        check_host(taskgate, Path(folder), host, servers, direct)


main()
