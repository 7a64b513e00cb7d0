"""Writes the report: what starts, what is refused, and the learned interval over time."""

from __future__ import annotations

from pathlib import Path

from lab.pacing.crawl import (
    SPAN_S,
    Crawl,
    Scenario,
    both,
    metered,
    refuses_by_chance,
    refuses_pages,
    windowed,
)

REPORT = Path(__file__).with_name("report.txt")
HEAD = f"""\
Written by `make pacing`. Each column is {SPAN_S:g} s of a crawl: starts a second, the share of them
that was refused (%), and the learned interval at its end (s; `-`: none; `off`: none for a while,
as an interval has not helped).
"""

SCENARIOS = (
    Scenario("5 starts a second, 5 at once", lambda: metered((0.0, 5.0), burst=5)),
    Scenario("The same, by 4 nodes", lambda: metered((0.0, 5.0), burst=5), nodes=4),
    Scenario(
        "The same, closing connections", lambda: metered((0.0, 5.0), burst=5), nodes=4, closes=True
    ),
    Scenario("A start in 1.5 s", lambda: metered((0.0, 1 / 1.5), burst=1), nodes=2),
    Scenario("A start in 5 s, 3 at once", lambda: metered((0.0, 0.2), burst=3)),
    Scenario("5 a second, then 2", lambda: metered((0.0, 5.0), (120.0, 2.0), burst=5)),
    Scenario("5 a second, then 1 in 2 s", lambda: metered((0.0, 5.0), (120.0, 0.5), burst=5)),
    Scenario("2 a second, then 10", lambda: metered((0.0, 2.0), (120.0, 10.0), burst=5)),
    Scenario("10 answers each 10 s", lambda: windowed(10, 10.0)),
    Scenario("100 answers each minute", lambda: windowed(100, 60.0)),
    Scenario("10 % of 300 pages", lambda: refuses_pages(0.1), limit=4, pages=300),
    Scenario("30 % of 300 pages", lambda: refuses_pages(0.3), limit=4, pages=300),
    Scenario(
        "30 % of 300 pages, closing connections",
        lambda: refuses_pages(0.3),
        limit=4,
        pages=300,
        closes=True,
    ),
    Scenario(
        "All pages, closing connections",
        lambda: refuses_pages(1.0),
        limit=4,
        pages=300,
        length=120.0,
        closes=True,
    ),
    Scenario("15 % by chance", lambda: refuses_by_chance((0.0, 0.15))),
    Scenario("30 % by chance", lambda: refuses_by_chance((0.0, 0.3))),
    Scenario("40 % by chance", lambda: refuses_by_chance((0.0, 0.4))),
    Scenario("30 % by chance, then none", lambda: refuses_by_chance((0.0, 0.3), (120.0, 0.0))),
    Scenario(
        "5 starts a second, and 10 % of the pages",
        lambda: both(metered((0.0, 5.0), burst=5), refuses_pages(0.1)),
    ),
)


def written(scenario: Scenario) -> str:
    """A scenario's part of the report."""
    crawl = Crawl(scenario)
    crawl.run()
    starts = [f"{span.starts / SPAN_S:.2f}" for span in crawl.spans]
    refused = [
        f"{100 * span.refused / span.starts:.0f}" if span.starts else "-" for span in crawl.spans
    ]
    intervals = [
        "off" if span.is_off else f"{span.interval:.2f}" if span.interval else "-"
        for span in crawl.spans
    ]
    end = f", all in {crawl.ended_at:.0f} s" if crawl.ended_at is not None else ""
    rows = (("starts/s", starts), ("refused", refused), ("interval", intervals))
    table = "".join(
        f"  {name:9}{''.join(f'{cell:>7}' for cell in cells)}\n" for name, cells in rows
    )
    return f"\n{scenario.name}: {crawl.good} good pages{end}\n{table}"


if __name__ == "__main__":
    REPORT.write_text(HEAD + "".join(map(written, SCENARIOS)), "utf-8")
