"""The tasks extension, which the SDK leaves to its user."""

import asyncio
from typing import Any, Literal

from mcp import MCPError, types
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ConfigDict, Field


class Reply(types.Result):
    model_config = ConfigDict(extra="allow")


class Created(Reply):
    result_type: Literal["task"] = Field(alias="resultType")


async def rpc(session, method: str, **params) -> dict[str, Any]:
    request = types.Request[dict, str](method=method, params=params)
    return (await session.send_request(request, Reply)).model_dump(by_alias=True)


async def poll(session, task_id: str) -> dict[str, Any]:
    failures = 0
    while True:
        try:
            return await rpc(session, "tasks/get", taskId=task_id)
        except MCPError as error:
            # 502 or 503: the gateway may be restarting, and the task continues.
            failures += 1
            if error.code != types.INTERNAL_ERROR or failures == 300:
                raise
        await asyncio.sleep(1)


async def follow(session, task_id: str, answer) -> types.CallToolResult:
    while (task := await poll(session, task_id))["status"] in ("working", "input_required"):
        print("progress:", task.get("statusMessage", task["status"]))
        asked = task.get("inputRequests", {})
        if answers := {key: await answer(question) for key, question in asked.items()}:
            await rpc(session, "tasks/update", taskId=task_id, inputResponses=answers)
        await asyncio.sleep(task["pollIntervalMs"] / 1000)
    if task["status"] != "completed":
        raise RuntimeError(f"{task['status']}: {task.get('error', task.get('statusMessage'))}")
    return types.CallToolResult.model_validate(task["result"])


class Tasks(ClientExtension):
    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, answer) -> None:
        self.answer = answer

    async def resolve(self, created: Created, context) -> types.CallToolResult:
        print("task", created.taskId, flush=True)
        return await follow(context.session, created.taskId, self.answer)

    def claims(self):
        return [ResultClaim(result_type="task", model=Created, resolve=self.resolve)]
