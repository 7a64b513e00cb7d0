"""From a release on one node to the grant on another."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from redis.asyncio.connection import UnixDomainSocketConnection

from benchmarks import rivals
from benchmarks.harness.contest import OURS, Contender, Place
from benchmarks.harness.handover import hand_over, percentile
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

TITLE = "handoff: from a release on one node to the grant on another"
COLUMNS = (
    "handed over by",
    "p50, ms",
    "p99, ms",
    "p50 / PUBLISH's",
    "p99 / PUBLISH's",
    "hand-overs",
)
HOW = (
    "Two processes on one server hand one permit to and fro; the contenders play in turn. Counted "
    "from just before the release to when the task that waited goes on, if it had asked before: "
    "what the one who gave it has snatched back is not in it."
)


class Bare:
    """The least that any client must do: connections, and nothing around them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # redis-py's connections, as ours, and without its time limits: each costs a task a reply.
        options: dict[str, Any] = {"socket_timeout": None, "protocol": 2}
        self._to = UnixDomainSocketConnection(path=place.path, **options)
        self._from = UnixDomainSocketConnection(path=place.path, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._to.disconnect(nowait=True)
        await self._from.disconnect(nowait=True)

    async def _say(self, connection: UnixDomainSocketConnection, *command: object) -> Any:
        await connection.send_command(*command)
        return await connection.read_response()

    async def acquire(self) -> None:
        raise NotImplementedError

    async def release(self) -> None:
        raise NotImplementedError

    async def holds(self) -> bool | None:
        return None


class Publish(Bare):
    """A message to the other side, which is read by who waits for it."""

    async def __aenter__(self) -> Self:
        self._begins = self._place.number == 0
        await self._say(self._from, "SUBSCRIBE", self._channel(self._place.number))
        return self

    async def acquire(self) -> None:
        if self._begins:
            self._begins = False
        else:
            await self._from.read_response()

    async def release(self) -> None:
        await self._say(self._to, "PUBLISH", self._channel(1 - self._place.number), "go")

    def _channel(self, number: int) -> str:
        return f"{self._place.scope}:{number}"


class TokenList(Bare):
    """One token in a list: who has it pushes it, who wants it is blocked until it comes."""

    async def __aenter__(self) -> Self:
        if self._place.number == 0:
            await self.release()
        return self

    async def acquire(self) -> None:
        await self._say(self._from, "BLPOP", f"{self._place.scope}:tokens", 0)

    async def release(self) -> None:
        await self._say(self._to, "RPUSH", f"{self._place.scope}:tokens", "token")


PUBLISH = Contender("a bare PUBLISH", Publish)
TOKEN_LIST = Contender("a bare RPUSH and BLPOP", TokenList)


def measure(quick: bool) -> Report:
    rivals.check_installed()
    peers = rivals.contenders()
    server = RedisServer().start()
    try:
        contenders = [OURS, PUBLISH, TOKEN_LIST, *peers]
        rounds, turns = (1, 50) if quick else (5, 400)
        times = hand_over(str(server.path), contenders, rounds, turns)
    finally:
        server.remove()
    p50 = {name: percentile(values, 0.5) * 1e3 for name, values in times.items()}
    p99 = {name: percentile(values, 0.99) * 1e3 for name, values in times.items()}
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            p50[name],
            p99[name],
            p50[name] / p50[PUBLISH.name],
            p99[name] / p99[PUBLISH.name],
            len(values),
        )
        for name, values in times.items()
    ]
    ours, bare = OURS.name, PUBLISH.name
    goals = [
        Goal("p50, times PUBLISH's", p50[ours] / p50[bare], at_most=2.0),
        Goal("p99, times PUBLISH's", p99[ours] / p99[bare], at_most=5.0),
        Goal("p50, ms, below the best peer's", p50[ours], at_most=min(p50[p.name] for p in peers)),
        Goal("p99, ms, below the best peer's", p99[ours], at_most=min(p99[p.name] for p in peers)),
    ]
    return Report(TITLE, COLUMNS, rows, goals, [HOW, f"Peers: {rivals.versions()}."])
