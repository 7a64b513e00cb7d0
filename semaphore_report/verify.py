"""The comparison of a report with the site's own access log."""

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
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from operator import attrgetter
from pathlib import Path

from semaphore_middleware.commands.verbs import CommandError, Status
from semaphore_report.history import CLASSES, History, Minute, class_of

GZIP = b"\x1f\x8b"
"""The first bytes of a packed file."""
MINUTE_S = 60
LATE_S = 100
"""Seconds after a minute's end until all nodes have written their part, or count as ended."""
LOST_S = (-120, 240)
"""Seconds around an ended node's last writing in which its unwritten requests may lie."""
LOG_STEP_S = 1.0
"""The precision of a log's times: whole seconds."""
GAP_SLACK_S = 1.0
"""The time by which a request may travel to its site longer than the request before it."""
# The common format, the rest of the combined one, and a duration at the end of either. A line in
# another format may be long: only beginnings of words are tried, and each word only whole.
LINE = re.compile(r'(?<!\S)(\S++) \S++ \S++ \[([^\]]{1,64})\] "(?:[^"\\]|\\.)*" (\d{3}) (?:\d++|-)')
AGENT = re.compile(r' "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)"')
DURATION = re.compile(r'[\s=]"?(\d{1,12}(?:\.\d{1,9})?)"?$')
LONGEST_DURATION = 25
"""Characters of what `DURATION` matches."""
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
    """In seconds, if the log has it. In the log, a number with a point is in seconds, else in
    microseconds."""


@contextmanager
def opened(name: str) -> Iterator[TextIOWrapper]:
    """A log's text: of a file, plain or by gzip, or of the standard input (-)."""
    with Path("/dev/stdin" if name == "-" else name).open("rb") as raw:
        is_packed = raw.peek(2)[:2] == GZIP
        unpacked = gzip.GzipFile(fileobj=raw) if is_packed else raw
        yield TextIOWrapper(unpacked, encoding="utf-8", errors="replace")


def network_of(text: str, strict: bool = True) -> Network:
    """The network that an option `--address` names; `strict`: without bits of a host."""
    try:
        return ip_network(text, strict)
    except ValueError as error:
        allowed = "allowed is an address or a network, like 192.0.2.0/28"
        raise CommandError(f"--address {text}: {error}; {allowed}", Status.WRONG) from None


def lines_of(log: Iterable[str]) -> Iterator[LogLine | None]:
    """The requests in a log; None for a line in another format."""
    for text in filter(str.strip, log):
        yield _line_of(text.rstrip())


def _line_of(text: str) -> LogLine | None:
    found = LINE.search(text)
    at = _time(found[2]) if found else None
    if found is None or at is None:
        return None
    agent = AGENT.match(text, found.end())
    end = (agent or found).end()
    last = DURATION.search(text, max(end, len(text) - LONGEST_DURATION))
    if last is None and end < len(text):
        return None
    duration = None
    if last:
        duration = float(last[1]) if "." in last[1] else int(last[1]) / 1e6
    return LogLine(at, found[1], agent[1] if agent else "", class_of(int(found[3])), duration)


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
    if not networks:
        return True
    try:
        address = ip_address(line.address)
    except ValueError:  # a host name
        return False
    # A server that listens on IPv6 logs 192.0.2.1 as ::ffff:192.0.2.1.
    mapped = (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
    return any(address in network or mapped in network for network in networks)


class Verdict:
    """The result of the comparison: any of `findings` refutes the report.

    A request in the log matches one of the report in the same minute or a minute next to it: clocks
    differ, and a log may have the time of a request's beginning or of its end.
    """

    def __init__(self, history: History, lines: Iterable[LogLine]) -> None:
        begin = -int(-history.since // MINUTE_S)
        end = int(history.until - LATE_S) // MINUTE_S  # the first minute that may lack something
        self._history = history
        self._minutes = {minute.at // MINUTE_S: minute for minute in history.minutes}
        self._near = [line for line in lines if begin - 1 <= line.at // MINUTE_S <= end]
        self._ours = [line for line in self._near if begin <= line.at // MINUTE_S < end]
        self.lines = len(self._ours)
        """The crawl's lines within the report's time."""
        self.findings: list[str] = []
        self.notes: list[str] = []
        """Excused differences, and comparisons that were not possible."""
        self._compare_counts()
        self._compare_peaks()
        self._compare_gaps()

    def _compare_counts(self) -> None:
        """Check that each request in the log is in the report, with the same answer."""
        logged = Counter(line.at // MINUTE_S for line in self._ours)
        begun = self._counted(lambda minute: minute.requests)
        ended = self._counted(lambda minute: _responses(minute) + minute.silent)
        unknown = min(_unmatched(logged, begun), _unmatched(logged, ended), key=Counter.total)
        lost = [
            range(int(at + LOST_S[0]) // MINUTE_S, int(at + LOST_S[1]) // MINUTE_S)
            for _, at in self._history.ended
        ]
        excused = {minute for minute in unknown if any(minute in minutes for minutes in lost)}
        for minute in sorted(unknown):
            text = f"{unknown[minute]} of {logged[minute]} requests in the log at {_clock(minute)}"
            if minute in excused:
                self.notes.append(
                    f"{text} are not in the report: a node ended about then without writing what "
                    "it did last"
                )
            else:
                here = Counter(line.address for line in self._ours if line.at // MINUTE_S == minute)
                who = ", ".join(address for address, _ in here.most_common(3))
                self.findings.append(f"{text} are not in the report (from {who})")
        self._compare_statuses(excused)

    def _compare_statuses(self, excused: set[int]) -> None:
        """Check the site's answers by classes of status. A request given up by the crawler may be
        logged as answered.
        """
        minutes = [line.at // MINUTE_S for line in self._ours]
        inner = range(min(minutes, default=0) + 1, max(minutes, default=0))
        silent = self._counted(lambda minute: minute.silent)
        for name, statuses in CLASSES.items():
            known = self._counted(attrgetter(name))
            reported = Counter({minute: n for minute, n in known.items() if minute in inner})
            logged = Counter(line.at // MINUTE_S for line in self._near if line.kind == name)
            mine = Counter(line.at // MINUTE_S for line in self._ours if line.kind == name)
            if missing := _unmatched(reported, logged).total():
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
        """Check that no more requests were open at once than permits were held. A request counts
        while it certainly was open, as the log's time is whole seconds.
        """
        timed = [(line.at, line.duration) for line in self._ours if line.duration is not None]
        if not timed:
            self.notes.append("the log has no durations: requests at once, and gaps, not compared")
            return
        certain = [(at + LOG_STEP_S - d, at) for at, d in timed if d > LOG_STEP_S]
        changes = sorted([(at, 1) for at, _ in certain] + [(at, -1) for _, at in certain])
        count = 0
        peaks = Counter[int]()
        for at, change in changes:
            count += change
            minute = int(at // MINUTE_S)
            peaks[minute] = max(peaks[minute], count)
        for minute, peak in sorted(peaks.items()):
            most = max((near.most for near in self._around(minute)), default=peak)
            if peak > most:
                self.findings.append(
                    f"{peak} requests were open at once at {_clock(minute)}; the report says {most}"
                )

    def _compare_gaps(self) -> None:
        """Check the delay between requests, as exactly as the log's whole seconds allow."""
        rules = [change.rule for change in self._history.changes]
        if any(rule.get(part) is not None for rule in rules for part in ("delay", "jitter")):
            self.notes.append("an operator has set a delay or its jitter: gaps are not compared")
            return
        early = Counter[int]()
        arrival = 0.0
        begins = (line.at - line.duration for line in self._ours if line.duration is not None)
        for start in sorted(begins):
            minute = int(start // MINUTE_S)
            gap = min((near.gap for near in self._around(minute)), default=0.0)
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
        return Counter({number: count(minute) for number, minute in self._minutes.items()})

    def _around(self, minute: int) -> list[Minute]:
        numbers = (minute - 1, minute, minute + 1)
        return [self._minutes[number] for number in numbers if number in self._minutes]


def _unmatched(wanted: Counter[int], offered: Counter[int]) -> Counter[int]:
    """The wanted requests, by minute, without a counterpart in their minute or one next to it.

    Each offered request is the counterpart of one wanted request. Taking the earliest one left
    leaves the fewest without.
    """
    left = Counter(offered)
    alone = Counter[int]()
    for minute in sorted(wanted):
        count = wanted[minute]
        for near in (minute - 1, minute, minute + 1):
            taken = min(count, left[near])
            left[near] -= taken
            count -= taken
        if count:
            alone[minute] = count
    return alone


def _responses(minute: Minute) -> int:
    return sum(getattr(minute, name) for name in CLASSES)


def _clock(minute: int) -> str:
    return datetime.fromtimestamp(minute * MINUTE_S, UTC).strftime("%Y-%m-%d %H:%M UTC")
