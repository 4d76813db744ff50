import asyncio
import sys

from connect import connect
from tasks import Tasks, follow


async def main() -> None:
    async with connect(extensions=[Tasks(None)]) as client:
        print((await follow(client.session, sys.argv[1], None)).content[0].text)


asyncio.run(main())
