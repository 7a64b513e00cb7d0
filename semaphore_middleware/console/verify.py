"""A report beside the site's own access log: what each knows of that the other does not."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from io import TextIOWrapper
from ipaddress import IPv4Network, IPv6Network, ip_address
from operator import attrgetter
from pathlib import Path

from semaphore_middleware.model.history import CLASS_OF, CLASSES, History, Minute

GZIP = b"\x1f\x8b"
"""What a packed file begins with."""
MINUTE_S = 60
LATE_S = 100
"""So long after a minute's end all nodes have said what they did in it, or count as ended."""
LOST_S = (-120, 240)
"""Before and after a node that ended last spoke, what it had not said may have happened."""
LOG_STEP_S = 1.0
"""The time in a log is whole seconds."""
GAP_SLACK_S = 1.0
"""A request may be under way to its site for so much longer than the one before it."""
# The common format, and the combined one with user agent; both may have a duration at the end.
LINE = re.compile(
    r'(\S+) \S+ \S+ \[([^\]]+)\] "(?:[^"\\]|\\.)*" (\d{3}) (?:\d+|-)'
    r'(?: "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)")?(?:.*?[\s=]"?(\d+(?:\.\d+)?)"?)?\s*$'
)
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class LogLine:
    """A request, as the site has logged it."""

    at: int
    """Unix time."""
    address: str
    agent: str
    kind: str
    """As the report counts it: one of `CLASSES`."""
    duration: float | None
    """In seconds, if the log has it: a number with a point is seconds, one without microseconds."""


@contextmanager
def opened(name: str) -> Iterator[TextIOWrapper]:
    """A log's text: of a file, plain or by gzip, or of the standard input (-)."""
    with Path("/dev/stdin" if name == "-" else name).open("rb") as raw:
        is_packed = raw.peek(2)[:2] == GZIP
        unpacked = gzip.GzipFile(fileobj=raw) if is_packed else raw
        yield TextIOWrapper(unpacked, encoding="utf-8", errors="replace")


def lines_of(log: Iterable[str]) -> Iterator[LogLine]:
    """The requests in a log; what is not in one of the formats is passed over."""
    for text in log:
        if (found := LINE.search(text)) and (at := _time(found[2])) is not None:
            address, _, status, agent, last = found.groups()
            duration = None
            if last:
                duration = float(last) if "." in last else int(last) / 1e6
            kind = CLASS_OF.get(int(status[0]), "ok")
            yield LogLine(at, address, agent or "", kind, duration)


@lru_cache(maxsize=1024)
def _time(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp())
    except ValueError:
        return None


def is_ours(line: LogLine, agent: str, networks: Sequence[Network]) -> bool:
    """True for a request with this in its user agent, from one of these addresses; empty: any."""
    if agent.lower() not in line.agent.lower():
        return False
    try:
        return not networks or any(ip_address(line.address) in network for network in networks)
    except ValueError:  # a host name
        return False


class Verdict:
    """What came of it. The report is convicted by any of `findings`.

    A request fits one in the same minute or the next to it, as clocks differ, and a log may have
    the time of its beginning or of its end.
    """

    def __init__(self, history: History, lines: Iterable[LogLine]) -> None:
        begin = -int(-history.since // MINUTE_S)
        end = int(history.until - LATE_S) // MINUTE_S  # the first minute that may lack something
        self._history = history
        self._minutes = {one.at // MINUTE_S: one for one in history.minutes}
        self._near = [one for one in lines if begin - 1 <= one.at // MINUTE_S <= end]
        self._ours = [one for one in self._near if begin <= one.at // MINUTE_S < end]
        self.lines = len(self._ours)
        """Of the crawl, within the report's time."""
        self.findings: list[str] = []
        self.notes: list[str] = []
        """What could not be compared, or is excused."""
        self._compare_counts()
        self._compare_peaks()
        self._compare_gaps()

    def _compare_counts(self) -> None:
        """Each request in the log is in the report, and has the answer that the report says."""
        logged = Counter(line.at // MINUTE_S for line in self._ours)
        begun = self._counted(lambda one: one.requests)
        ended = self._counted(lambda one: _responses(one) + one.silent)
        unknown = min(_unmatched(logged, begun), _unmatched(logged, ended), key=Counter.total)
        lost = [
            range(int(at + LOST_S[0]) // MINUTE_S, int(at + LOST_S[1]) // MINUTE_S)
            for _, at in self._history.ended
        ]
        excused = {minute for minute in unknown if any(minute in one for one in lost)}
        for minute in sorted(unknown):
            text = f"{unknown[minute]} of {logged[minute]} requests in the log at {_clock(minute)}"
            if minute in excused:
                self.notes.append(
                    f"{text} are not in the report: a node ended about then that had not said the "
                    "last of what it did"
                )
            else:
                here = Counter(one.address for one in self._ours if one.at // MINUTE_S == minute)
                who = ", ".join(address for address, _ in here.most_common(3))
                self.findings.append(f"{text} are not in the report (from {who})")
        self._compare_statuses(excused)

    def _compare_statuses(self, excused: set[int]) -> None:
        """The site has answered as the report says, by classes of status. What the crawler gave up
        may be logged as answered.
        """
        lines = [one.at // MINUTE_S for one in self._ours]
        inner = range(min(lines, default=0) + 1, max(lines, default=0))
        silent = self._counted(lambda one: one.silent)
        for name, statuses in CLASSES.items():
            known = self._counted(attrgetter(name))
            said = Counter({minute: number for minute, number in known.items() if minute in inner})
            logged, mine = (
                Counter(one.at // MINUTE_S for one in some if one.kind == name)
                for some in (self._near, self._ours)
            )
            if missing := _unmatched(said, logged).total():
                self.findings.append(
                    f"{missing} responses of the report ({statuses}) are not in the log"
                )
            hidden = _unmatched(mine, known + silent)
            count = sum(number for minute, number in hidden.items() if minute not in excused)
            if count and not self.findings:
                self.findings.append(
                    f"{count} responses of the log ({statuses}) are others in the report"
                )

    def _compare_peaks(self) -> None:
        """The site cannot have had more open at once than permits were held. A request counts
        while it was open for certain, as the log's time is whole seconds.
        """
        timed = [(one.at, one.duration) for one in self._ours if one.duration is not None]
        if not timed:
            self.notes.append("the log has no durations: requests at once, and gaps, not compared")
            return
        certain = [(at + LOG_STEP_S - d, at) for at, d in timed if d > LOG_STEP_S]
        changes = sorted([(at, 1) for at, _ in certain] + [(at, -1) for _, at in certain])
        count, peaks = 0, Counter[int]()
        for at, change in changes:
            count += change
            minute = int(at // MINUTE_S)
            peaks[minute] = max(peaks[minute], count)
        for minute, peak in sorted(peaks.items()):
            most = max((one.most for one in self._around(minute)), default=peak)
            if peak > most:
                self.findings.append(
                    f"{peak} requests were open at once at {_clock(minute)}; the report says {most}"
                )

    def _compare_gaps(self) -> None:
        """Where nodes asked for a delay, requests came no faster, as far as whole seconds tell."""
        if any(one.rule.get("delay") is not None for one in self._history.changes):
            self.notes.append("an operator has set a delay: gaps are not compared")
            return
        early, arrival = Counter[int](), 0.0
        begins = (one.at - one.duration for one in self._ours if one.duration is not None)
        for start in sorted(begins):
            minute = int(start // MINUTE_S)
            gap = min((one.gap for one in self._around(minute)), default=0.0)
            if arrival - start > LOG_STEP_S + GAP_SLACK_S:
                early[minute] += 1
            arrival = max(arrival, start) + gap
        for minute, count in sorted(early.items()):
            self.findings.append(
                f"{count} requests at {_clock(minute)} came sooner after others than the report "
                "says"
            )

    def _counted(self, count: Callable[[Minute], int]) -> Counter[int]:
        """A count of the report, by minute."""
        return Counter({minute: count(one) for minute, one in self._minutes.items()})

    def _around(self, minute: int) -> list[Minute]:
        near = (minute - 1, minute, minute + 1)
        return [self._minutes[one] for one in near if one in self._minutes]


def _unmatched(wanted: Counter[int], offered: Counter[int]) -> Counter[int]:
    """Of each minute those that have no counterpart of their own in a minute within one of theirs.
    To take the earliest counterpart that is left leaves the fewest.
    """
    left, alone = Counter(offered), Counter[int]()
    for minute in sorted(wanted):
        count = wanted[minute]
        for near in (minute - 1, minute, minute + 1):
            taken = min(count, left[near])
            left[near] -= taken
            count -= taken
        if count:
            alone[minute] = count
    return alone


def _responses(one: Minute) -> int:
    return sum(getattr(one, name) for name in CLASSES)


def _clock(minute: int) -> str:
    return datetime.fromtimestamp(minute * MINUTE_S, UTC).strftime("%Y-%m-%d %H:%M UTC")
