"""Compares the server's history of each site with the requests that have really begun."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lab.simulation.server import Server
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.records import MINUTE, PAUSE
from semaphore_middleware.report.writer import HistoryWriter

if TYPE_CHECKING:
    from lab.simulation.judge import Judge, Request

HISTORY_S = 86400.0
OFF_S = 0.01  # a node's largest error about the server's clock on a calm day
KEYS = HistoryKeys("semaphore")


@dataclass
class History:
    """Notes all requests, and compares them with the server's history in the end."""

    judge: Judge
    server: Server
    _begun: dict[str, list[tuple[float, HistoryWriter]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By scope: when each began, by the server's clock, and the observer of its node."""
    _refused: Counter[str] = field(default_factory=Counter)
    _peaks: Counter[str] = field(default_factory=Counter)

    def on_begin(self, request: Request) -> None:
        """A request begins; the judge has counted it as open."""
        writer = writer_of(request.node.semaphore)
        for scope in request.job.scopes:
            self._begun[scope].append((self._wall(), writer))
            is_open = [
                one for one in self.judge.open[scope] if not self.judge.is_excused(scope, one)
            ]
            self._peaks[scope] = max(self._peaks[scope], len(is_open))

    def on_refused(self, scope: str) -> None:
        """A node reports that a site has refused a request."""
        self._refused[scope] += 1

    def _wall(self) -> float:
        return self.server.wall_ms(self.judge.world.now) / 1000

    # In the end ---------------------------------------------------------------------------------

    def check(self, had_full: bool) -> None:
        """Compare. The history lacks what a dead node had not reported, or a server has lost."""
        judge = self.judge
        for scope, begun in self._begun.items():
            minutes = dict(self._minutes(scope))
            written = [at for at, writer in begun if writer.diary.is_closed]
            is_whole = not (judge.faults.losses_at or had_full or judge.plan.kind == "days")
            least, most = len(written) if is_whole else 0, len(begun)
            total = sum(one["requests"] for one in minutes.values())
            if not least <= total <= most:
                self._convict(scope, f"{total} requests, of {least} to {most} that began")
            elif not is_whole or len(written) < most:
                continue
            noted = max((one["most"] for one in minutes.values()), default=0)
            if noted < self._peaks[scope]:
                self._convict(scope, f"{noted} at once, of {self._peaks[scope]}")
            refused = sum(one["refused"] for one in minutes.values())
            if refused != self._refused[scope]:
                self._convict(scope, f"{refused} refusals, of {self._refused[scope]}")
            if not judge.faults.jumps_at:
                self._check_intervals(scope, minutes, sorted(at for at, _ in begun))
            if judge.plan.kind == "calm":
                self._check_times(scope, minutes, [at for at, _ in begun])

    def _check_intervals(
        self, scope: str, minutes: dict[int, dict[str, float]], begun: list[float]
    ) -> None:
        """No two starts of a minute are closer than its shortest effective interval."""
        for minute, one in minutes.items():
            here = [at for at in begun if OFF_S < at - 60 * minute < 60 - OFF_S]
            closest = min((after - at for at, after in pairwise(here)), default=math.inf)
            if closest < one["least_interval"] - OFF_S and here[1:]:
                self._convict(scope, f"starts {closest:.3f} s apart in minute {minute}, of {one}")

    def _check_times(
        self, scope: str, minutes: dict[int, dict[str, float]], begun: list[float]
    ) -> None:
        for minute, least, most in _bounds(begun, 60):
            noted = minutes[minute]["requests"] if minute in minutes else 0
            if not least <= noted <= most:
                self._convict(scope, f"{noted} requests in a minute, of {least} to {most}")
        for minute, one in minutes.items():
            here = [at for at in begun if -OFF_S < at - 60 * minute < 60 + OFF_S]
            seconds = [(0, 0, 0), *_bounds(here, 1)]
            least, most = max(low for _, low, _ in seconds), max(high for *_, high in seconds)
            if not least <= one["starts"] <= most:
                self._convict(scope, f"{one['starts']} starts in a second")
        for paused_at, pause in self._pauses(scope):
            self._check_pause(scope, paused_at, pause, begun)

    def _check_pause(
        self, scope: str, paused_at: float, pause: dict[str, float], begun: list[float]
    ) -> None:
        end = paused_at + pause["length"] / 1000
        late = [at - paused_at for at in begun if paused_at + OFF_S < at < end - OFF_S]
        perhaps = [at - paused_at for at in begun if paused_at < at < end + OFF_S]
        noted = pause["last"] / 1000
        if noted < max(late, default=0.0) - OFF_S or (
            noted > OFF_S and all(abs(noted - one) > OFF_S for one in perhaps)
        ):
            self._convict(scope, f"a start {noted} s after a pause began, of {late}")

    def _minutes(self, scope: str) -> Iterator[tuple[int, dict[str, float]]]:
        for hour, name, values in self._fields(scope):
            if name.isdigit():
                yield 60 * hour + int(name), dict(zip(MINUTE.names, values, strict=True))

    def _pauses(self, scope: str) -> Iterator[tuple[float, dict[str, float]]]:
        for _, name, values in self._fields(scope):
            if name.startswith("pause:"):
                yield int(name[6:]) / 1000, dict(zip(PAUSE.names, values, strict=True))

    def _fields(self, scope: str) -> Iterator[tuple[int, str, list[float]]]:
        for key, _ in self.server.keys_left():
            hour, _, name = key.removeprefix(KEYS.sites + b":").partition(b":")
            if hour.isdigit() and name == scope.encode():
                for part in self.server.fields(key):
                    yield int(hour), part.decode(), self.server.field(key, part)

    def _convict(self, scope: str, what: str) -> None:
        self.judge.violate(f"HISTORY {scope}: {what}")


def writer_of(semaphore: FairSemaphore) -> HistoryWriter:
    (writer,) = (
        observer for observer in semaphore._observers._open if isinstance(observer, HistoryWriter)
    )
    return writer


def _bounds(times: list[float], length: int) -> Iterator[tuple[int, int, int]]:
    """For each part of time of this length: its number, and the least and the most of the times
    that may be noted in it, as clocks differ a little.
    """
    for part in {int((at + off) // length) for at in times for off in (-OFF_S, OFF_S)}:
        begin, end = part * length, (part + 1) * length
        least = sum(begin + OFF_S <= at < end - OFF_S for at in times)
        most = sum(begin - OFF_S <= at < end + OFF_S for at in times)
        yield part, least, most
