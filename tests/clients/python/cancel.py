import asyncio

from connect import connect


async def main() -> None:
    async with connect() as client:
        try:
            await asyncio.wait_for(client.call_tool("slow_report", {"seconds": 60}), timeout=2)
        except TimeoutError:
            print("cancelled")


asyncio.run(main())
