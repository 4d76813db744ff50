import asyncio

from connect import connect
from tasks import Tasks


async def answer(question) -> dict:
    print("question:", question["params"]["message"])
    return {"action": "accept", "content": {"confirm": True}}


async def main() -> None:
    async with connect(extensions=[Tasks(answer)]) as client:
        for tool, arguments in [("slow_report", {"seconds": 4, "steps": 4}), ("confirm_delete", {"path": "/tmp/old"})]:
            print((await client.call_tool(tool, arguments)).content[0].text)


asyncio.run(main())
