import asyncio

from connect import connect


async def main() -> None:
    async with connect() as client:
        async with client.listen(tools_list_changed=True) as subscription:
            print("granted:", subscription.honored.model_dump(by_alias=True, exclude_none=True))


asyncio.run(main())
