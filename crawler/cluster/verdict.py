"""The result of a cluster's crawl: its problems, and the table that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from crawler.cluster.process import NodeResult
from crawler.example_site import Judge

REFUSALS = ("429", "503")
NO_FAILURES = ("IgnoreRequest", "PermitLostError")
"""Exceptions that say nothing of the site: what robots.txt forbids, and what is made again."""


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
    def refusals(self) -> Mapping[str, int]:
        """Responses by which the site refused a request, by status."""
        return {status: n for status, n in self._errors.items() if status in REFUSALS}

    @property
    def other_errors(self) -> Mapping[str, int]:
        """All other responses with an error, by status."""
        return {status: n for status, n in self._errors.items() if status not in REFUSALS}

    @property
    def _errors(self) -> Counter[str]:
        """Responses by status, from 400 on, also where the request was made again. A robots.txt
        that is not there is no error.
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
        """Requests that the site's robots.txt forbids, or forbade as it could not be read."""
        return sum(int(node.stats.get("robotstxt/forbidden", 0)) for node in self.nodes)

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
    site = result.site
    if site is None:
        found += _problems_of_another_site(result)
    else:
        if not result.pages:
            found.append("no pages were fetched")
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


def _problems_of_another_site(result: CrawlResult) -> list[str]:
    """What only the nodes can tell, as the site is not ours."""
    found = []
    if result.refusals:
        found.append(f"the site refused requests: {_listed(result.refusals)}")
    if result.other_errors:
        found.append(f"the site answered with errors: {_listed(result.other_errors)}")
    if result.failures:
        found.append(f"the site did not respond: {_listed(result.failures)}")
    if not result.pages:
        why = f": robots.txt forbids them ({result.forbidden})" if result.forbidden else ""
        found.insert(0, "no pages were fetched" + ("" if found else why))
    return found


def _listed(counts: Mapping[str, int]) -> str:
    times = {name: "once" if n == 1 else f"{n} times" for name, n in counts.items()}
    return ", ".join(f"{name} ({times[name]})" for name in sorted(times))


def table(result: CrawlResult) -> Table:
    """What was measured, beside what was expected."""
    title = f"{escape(result.url)}, {len(result.nodes)} nodes"
    shown = Table(title=title, title_justify="left")
    shown.add_column()
    shown.add_column("measured", justify="right")
    shown.add_column("expected", justify="right")
    for node in result.nodes:
        shown.add_row(f"pages of {node.name}", str(node.pages))
    shown.add_row("pages of all nodes", str(result.pages), end_section=True)
    if result.site is not None:
        _add_site(shown, result, result.site)
    else:
        _add_another_site(shown, result)
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


def _add_another_site(shown: Table, result: CrawlResult) -> None:
    rows = {
        f"requests refused ({', '.join(REFUSALS)})": result.refusals,
        "responses with other errors": result.other_errors,
        "requests without a response": result.failures,
    }
    for name, counts in rows.items():
        shown.add_row(name, _judged(sum(counts.values()), 0), "0")
    if result.seconds:
        shown.add_row("pages a second", f"{result.pages / result.seconds:.1f}", end_section=True)


def _judged(value: int, most: int) -> str:
    return f"[red]{value}[/red]" if value > most else f"[green]{value}[/green]"
