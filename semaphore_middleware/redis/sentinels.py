"""Asks sentinels where the master of a service is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from redis.exceptions import ResponseError

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.redis.connection import Address
from semaphore_middleware.redis.connector import Connector

QUESTION = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")


class Sentinels:
    """The sentinels that a URL names. All are asked each time, and the majority is believed: one
    that is cut off from the others may name a master that was replaced.

    `credentials` are for the sentinels, not for the master.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        service: str,
        connector: Connector,
        credentials: Mapping[str, str],
    ) -> None:
        self._addresses = addresses
        self.service = service
        self._connector = connector
        self._credentials = credentials

    async def find_master(self) -> Address:
        """Where the master is, as most of the sentinels that answer say.

        Raises `ServerUnreachableError`, or `ServerRefusedError` where waiting would not help.
        """
        asked = [asyncio.create_task(self._ask(address)) for address in self._addresses]
        answers: Counter[Address | None] = Counter()
        problems: list[Exception] = []
        try:
            for one in asyncio.as_completed(asked):
                try:
                    answer = await one
                except (ServerUnreachableError, ServerRefusedError) as problem:
                    problems.append(problem)
                    continue
                answers[answer] += 1
                if 2 * answers[answer] > len(asked):
                    break  # whatever the others say
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return self._believed(answers, problems)

    def _believed(self, answers: Counter[Address | None], problems: Sequence[Exception]) -> Address:
        if not answers:
            # One that refuses will go on refusing, but another may come back.
            raise min(problems, key=lambda one: isinstance(one, ServerRefusedError))
        ((answer, count),) = answers.most_common(1)
        if 2 * count <= answers.total():
            named = ", ".join(str(one or "none") for one in answers)
            raise ServerUnreachableError(
                f"the sentinels do not agree on the master of {self.service!r}: {named}"
            )
        if answer is None:
            raise ServerRefusedError(f"the sentinels know no service {self.service!r}")
        return answer

    async def _ask(self, address: Address) -> Address | None:
        """Its answer; None: it does not know the service."""
        name = f"the sentinel at {address}"
        connection = await self._connector.connect(address, name, credentials=self._credentials)
        try:
            (reply,) = await connection.call([(*QUESTION, self.service)])
        finally:
            await connection.close()
        if isinstance(reply, ResponseError) and "unknown command" in str(reply).lower():
            raise ServerRefusedError(f"{address} is not a sentinel")
        connection.check([reply])
        return Address(reply[0].decode(), int(reply[1])) if reply else None
