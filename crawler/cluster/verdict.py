"""The result of a cluster's crawl: its problems, and the table that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from crawler.cluster.process import NodeResult
from crawler.example_site import Judge


@dataclass(frozen=True)
class SiteResult:
    """The example site's own record of the crawl."""

    most: int  # requests open at once
    requests: int
    seconds: float  # from the first request to the end of the last
    missed: int  # pages never asked for
    twice: int  # pages asked for more than once
    forbidden: int  # requests that robots.txt forbids

    @classmethod
    def of(cls, judge: Judge, host: str) -> SiteResult:
        """The record of one host."""
        record = judge.record(host)
        return cls(
            most=record.most,
            requests=record.pages.total() + record.robots + record.forbidden,
            seconds=(record.last or 0.0) - (record.first or 0.0),
            missed=len(judge.missed(host)),
            twice=len(judge.twice(host)),
            forbidden=record.forbidden,
        )


@dataclass(frozen=True)
class CrawlResult:
    """The nodes' results together, and what is left on the server."""

    url: str
    limit: int
    latency: float  # seconds
    nodes: Sequence[NodeResult]
    permits_left: int
    site: SiteResult | None = None

    @property
    def pages(self) -> int:
        """Pages of all nodes."""
        return sum(node.pages for node in self.nodes)

    @property
    def mean_wait(self) -> float | None:
        """Seconds that a request has waited for its permit; None without permits."""
        permits = sum(node.stat("acquired") for node in self.nodes)
        waited = sum(node.stat("wait_seconds") for node in self.nodes)
        return waited / permits if permits else None

    @property
    def longest_wait(self) -> float:
        """Seconds that the unluckiest request has waited for its permit."""
        return max((node.stat("wait_seconds_max") for node in self.nodes), default=0.0)

    @property
    def seconds(self) -> float:
        """The running time of the node that ran longest."""
        return max((node.stats.get("elapsed_time_seconds", 0.0) for node in self.nodes), default=0)


def problems(result: CrawlResult) -> list[str]:
    """Everything that is not as promised, one line each."""
    found = [f"{node.name} failed: {node.error}" for node in result.nodes if node.error]
    if not result.pages:
        found.append("no pages were fetched")
    site = result.site
    if site is not None:
        if site.most > result.limit:
            found.append(f"limit {result.limit} was exceeded: {site.most} requests at once")
        if site.missed:
            found.append(f"pages missed: {site.missed}")
        if site.twice:
            found.append(f"pages fetched twice: {site.twice}")
        if site.forbidden:
            found.append(f"requests forbidden by robots.txt: {site.forbidden}")
    if result.permits_left:
        found.append(f"permits left on the server: {result.permits_left}")
    return found


def table(result: CrawlResult) -> Table:
    """What was measured, beside what was expected."""
    shown = Table(title=f"{result.url}, {len(result.nodes)} nodes", title_justify="left")
    shown.add_column()
    shown.add_column("measured", justify="right")
    shown.add_column("expected", justify="right")
    for node in result.nodes:
        shown.add_row(f"pages of {node.name}", str(node.pages))
    shown.add_row("pages of all nodes", str(result.pages), end_section=True)
    if result.site is not None:
        _add_site(shown, result, result.site)
    elif result.seconds:
        shown.add_row("pages a second", f"{result.pages / result.seconds:.1f}")
    if result.mean_wait is not None:
        shown.add_row("mean wait for a permit", f"{result.mean_wait:.2f} s")
        shown.add_row("longest wait for a permit", f"{result.longest_wait:.2f} s")
    shown.add_row("permits left", _judged(result.permits_left, 0), "0")
    return shown


def _add_site(shown: Table, result: CrawlResult, site: SiteResult) -> None:
    most = _judged(site.most, result.limit)
    shown.add_row("most requests at once", most, f"at most {result.limit}")
    shown.add_row("pages missed", _judged(site.missed, 0), "0")
    shown.add_row("pages fetched twice", _judged(site.twice, 0), "0")
    shown.add_row("requests robots.txt forbids", _judged(site.forbidden, 0), "0")
    if site.seconds and result.latency:
        possible = result.limit / result.latency
        rate = site.requests / site.seconds
        shown.add_row("pages a second", f"{rate:.1f}", f"at most {possible:.1f}", end_section=True)


def _judged(value: int, most: int) -> str:
    return f"[red]{value}[/red]" if value > most else f"[green]{value}[/green]"
