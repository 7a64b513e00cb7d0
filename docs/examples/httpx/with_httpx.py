import asyncio

import httpx

from semaphore_middleware import FairSemaphore
from semaphore_middleware.clients.httpx import AsyncSemaphoreTransport

URLS = [f"https://example.com/page/{number}" for number in range(20)]


async def main():
    async with FairSemaphore("redis://localhost") as semaphore:
        transport = AsyncSemaphoreTransport(semaphore, limit=2)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            print(await asyncio.gather(*map(client.get, URLS), return_exceptions=True))


asyncio.run(main())
