import asyncio

from connect import connect


async def progress(_done, _total, message) -> None:
    print("progress:", message)


async def main() -> None:
    async with connect() as client:
        report = await client.call_tool("slow_report", {"seconds": 4, "steps": 4}, progress_callback=progress)
        print(report.content[0].text)
        deleted = await client.call_tool("confirm_delete", {"path": "/tmp/old"})
        print(deleted.content[0].text)


asyncio.run(main())
