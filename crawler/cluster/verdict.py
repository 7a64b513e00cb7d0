"""What a cluster's run came to: the verdict, and the table that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from crawler.cluster.process import NodeReport
from crawler.example_site import Judge


@dataclass(frozen=True)
class SiteReport:
    """What only the example site can know."""

    most: int  # requests in hand at once
    requests: int
    seconds: float  # from the first request to the end of the last
    missed: int  # pages never asked for
    twice: int  # pages asked for more than once
    forbidden: int  # requests that robots.txt forbids

    @classmethod
    def of(cls, judge: Judge, host: str) -> SiteReport:
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
class Report:
    url: str
    limit: int
    latency: float  # seconds
    nodes: Sequence[NodeReport]
    permits_left: int
    site: SiteReport | None = None

    @property
    def pages(self) -> int:
        return sum(node.pages for node in self.nodes)

    @property
    def mean_wait(self) -> float | None:
        permits = sum(node.stat("acquired") for node in self.nodes)
        waited = sum(node.stat("wait_seconds") for node in self.nodes)
        return waited / permits if permits else None

    @property
    def longest_wait(self) -> float:
        return max((node.stat("wait_seconds_max") for node in self.nodes), default=0.0)

    @property
    def seconds(self) -> float:
        return max((node.stats.get("elapsed_time_seconds", 0.0) for node in self.nodes), default=0)


def problems(report: Report) -> list[str]:
    """Everything that is not as promised, a line each."""
    found = [f"{node.name} failed: {node.error}" for node in report.nodes if node.error]
    if not report.pages:
        found.append("no page came back")
    site = report.site
    if site is not None:
        if site.most > report.limit:
            found.append(f"the limit was passed: {site.most} requests at once, not {report.limit}")
        if site.missed:
            found.append(f"pages missed: {site.missed}")
        if site.twice:
            found.append(f"pages fetched twice: {site.twice}")
        if site.forbidden:
            found.append(f"requests that robots.txt forbids: {site.forbidden}")
    if report.permits_left:
        found.append(f"permits left on the server: {report.permits_left}")
    return found


def table(report: Report) -> Table:
    shown = Table(title=f"{report.url}, {len(report.nodes)} nodes", title_justify="left")
    shown.add_column()
    shown.add_column("measured", justify="right")
    shown.add_column("expected", justify="right")
    for node in report.nodes:
        shown.add_row(f"pages of {node.name}", str(node.pages))
    shown.add_row("pages of all nodes", str(report.pages), end_section=True)
    if report.site is not None:
        _add_site(shown, report, report.site)
    elif report.seconds:
        shown.add_row("pages a second", f"{report.pages / report.seconds:.1f}")
    if report.mean_wait is not None:
        shown.add_row("mean wait for a permit", f"{report.mean_wait:.2f} s")
        shown.add_row("longest wait for a permit", f"{report.longest_wait:.2f} s")
    shown.add_row("permits left", _judged(report.permits_left, 0), "0")
    return shown


def _add_site(shown: Table, report: Report, site: SiteReport) -> None:
    most = _judged(site.most, report.limit)
    shown.add_row("most requests at once", most, f"at most {report.limit}")
    shown.add_row("pages missed", _judged(site.missed, 0), "0")
    shown.add_row("pages fetched twice", _judged(site.twice, 0), "0")
    shown.add_row("requests robots.txt forbids", _judged(site.forbidden, 0), "0")
    if site.seconds and report.latency:
        possible = report.limit / report.latency
        rate = site.requests / site.seconds
        shown.add_row("pages a second", f"{rate:.1f}", f"at most {possible:.1f}", end_section=True)


def _judged(value: int, most: int) -> str:
    return f"[red]{value}[/red]" if value > most else f"[green]{value}[/green]"
