"""The result of a demonstration's crawl: its problems, and its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from lab.demo.process import NodeResult
from lab.demo.site import Record

REFUSALS = ("429", "503")
NO_FAILURES = ("IgnoreRequest", "PermitLostError")
"""Exceptions of requests forbidden by robots.txt or retried: not faults of the site."""


@dataclass(frozen=True)
class CrawlResult:
    """The nodes' results together, and the permits left on the server."""

    url: str
    limit: int
    latency: float  # seconds
    nodes: Sequence[NodeResult]
    permits_left: int
    site: Record | None = None

    @property
    def pages(self) -> int:
        """Pages of all nodes."""
        return sum(node.pages for node in self.nodes)

    @property
    def errors(self) -> Counter[str]:
        """Responses by status, from 400 on, even if the request was retried. The final
        responses for robots.txt are left out.
        """
        found: Counter[str] = Counter()
        for node in self.nodes:
            found += node.counts("downloader/response_status_count")
            found -= node.counts("robotstxt/response_status_count")
        return Counter({status: n for status, n in found.items() if status >= "400"})

    @property
    def failures(self) -> Mapping[str, int]:
        """Requests without a response, by the name of the exception."""
        found: Counter[str] = Counter()
        for node in self.nodes:
            for path, n in node.counts("downloader/exception_type_count").items():
                found[path.rpartition(".")[2]] += n
        return {name: n for name, n in found.items() if name not in NO_FAILURES}

    @property
    def forbidden(self) -> int:
        """Requests forbidden by the site's robots.txt, or because it could not be read."""
        return sum(int(node.stats.get("robotstxt/forbidden", 0)) for node in self.nodes)

    @property
    def mean_wait(self) -> float | None:
        """Seconds of waiting per permit; None without permits."""
        permits = sum(node.stat("acquired") for node in self.nodes)
        waited = sum(node.stat("wait_seconds") for node in self.nodes)
        return waited / permits if permits else None

    @property
    def longest_wait(self) -> float:
        """The longest wait of a request for its permit, in seconds."""
        return max((node.stat("wait_seconds_max") for node in self.nodes), default=0.0)

    @property
    def pages_a_second(self) -> float | None:
        """Requests a second by the example site, else pages by the longest run; None without."""
        if self.site is not None:
            return self.site.requests / self.site.seconds if self.site.seconds else None
        elapsed = [node.stats.get("elapsed_time_seconds", 0.0) for node in self.nodes]
        return self.pages / max(elapsed) if any(elapsed) else None


@dataclass(frozen=True)
class Check:
    """A promise: a row of the table, and a problem if more was measured."""

    row: str
    measured: int
    problem: str
    most: int = 0
    expected: str = "0"

    @property
    def failed(self) -> bool:
        """True if more was measured than promised."""
        return self.measured > self.most


def checks(result: CrawlResult) -> list[Check]:
    """All promises, in the table's order."""
    site = result.site
    found = _seen_by_nodes(result) if site is None else _seen_by_site(site, result.limit)
    left = result.permits_left
    return [*found, Check("permits left", left, f"permits left on the server: {left}")]


def _seen_by_site(site: Record, limit: int) -> list[Check]:
    missed, twice = len(site.missed), len(site.twice)
    exceeded = f"limit {limit} was exceeded: {site.most} requests at once"
    forbidden = f"requests forbidden by robots.txt: {site.forbidden}"
    return [
        Check("most requests at once", site.most, exceeded, limit, f"at most {limit}"),
        Check("pages missed", missed, f"pages missed: {missed}"),
        Check("pages fetched twice", twice, f"pages fetched twice: {twice}"),
        Check("requests robots.txt forbids", site.forbidden, forbidden),
    ]


def _seen_by_nodes(result: CrawlResult) -> list[Check]:
    refusals = {status: n for status, n in result.errors.items() if status in REFUSALS}
    errors = {status: n for status, n in result.errors.items() if status not in REFUSALS}
    rows = [
        (f"requests refused ({', '.join(REFUSALS)})", "refused requests", refusals),
        ("responses with other errors", "answered with errors", errors),
        ("requests without a response", "did not respond", result.failures),
    ]
    return [
        Check(row, sum(counts.values()), f"the site {problem}: {_listed(counts)}")
        for row, problem, counts in rows
    ]


def _listed(counts: Mapping[str, int]) -> str:
    times = {name: "once" if n == 1 else f"{n} times" for name, n in counts.items()}
    return ", ".join(f"{name} ({times[name]})" for name in sorted(times))


def problems(result: CrawlResult) -> list[str]:
    """All failed nodes and broken promises, one line each; also a crawl without pages."""
    found = [f"{node.name} failed: {node.error}" for node in result.nodes if node.error]
    failed = [check.problem for check in checks(result) if check.failed]
    if not result.pages:
        why = f": robots.txt forbids them ({result.forbidden})" if result.forbidden else ""
        found.append("no pages were fetched" + ("" if failed else why))
    return found + failed


def table(result: CrawlResult) -> Table:
    """The measured figures, beside the expected ones."""
    title = f"{escape(result.url)}, {len(result.nodes)} nodes"
    shown = Table(title=title, title_justify="left")
    shown.add_column()
    shown.add_column("measured", justify="right")
    shown.add_column("expected", justify="right")
    for node in result.nodes:
        shown.add_row(f"pages of {node.name}", str(node.pages))
    shown.add_row("pages of all nodes", str(result.pages), end_section=True)
    for check in checks(result):
        color = "red" if check.failed else "green"
        shown.add_row(check.row, f"[{color}]{check.measured}[/{color}]", check.expected)
    shown.add_section()
    if result.pages_a_second is not None:
        is_timed = result.site is not None and result.latency
        possible = f"at most {result.limit / result.latency:.1f}" if is_timed else ""
        shown.add_row("pages a second", f"{result.pages_a_second:.1f}", possible)
    if result.mean_wait is not None:
        shown.add_row("mean wait for a permit", f"{result.mean_wait:.2f} s")
        shown.add_row("longest wait for a permit", f"{result.longest_wait:.2f} s")
    return shown
