import asyncio

from connect import connect


async def main() -> None:
    async with connect() as client:
        print("calling", flush=True)
        key = {"io.taskgate/idempotency-key": "report-10"}
        report = await client.call_tool("slow_report", {"seconds": 4, "steps": 4}, meta=key)
        print(report.content[0].text)


asyncio.run(main())
