"""The chaos table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.chaos.checker import Verdict

TITLE = "limit {}; gap: longest time without a start at any site; seconds: measured / promised"


@dataclass(frozen=True)
class Result:
    """The verdict on one run, and the fault that it was done with."""

    fault: str
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        return {"fault": self.fault, **asdict(self.verdict)}


def show(results: Sequence[Result], limit: int) -> None:
    """One line a fault, over all its runs, and one for all of them."""
    table = Table(box=box.SIMPLE, title=TITLE.format(limit))
    table.add_column("fault", no_wrap=True)
    for heading in (
        "runs",
        "requests",
        "most at once",
        "pages lost",
        "permits lost",
        "gap",
        "s to full use",
        "broken",
        "not done",
    ):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(result.fault for result in results):
        verdicts = [result.verdict for result in results if result.fault == name]
        table.add_row(name, *_cells(verdicts, limit))
    table.add_section()
    table.add_row("all", *_cells([result.verdict for result in results], limit))
    Console(width=140).print(table)


def _cells(verdicts: Sequence[Verdict], limit: int) -> list[str]:
    slowest = max(verdicts, key=lambda verdict: verdict.recovery, default=Verdict())
    excess = max((verdict.excess for verdict in verdicts), default=0)
    return [
        str(len(verdicts)),
        str(sum(verdict.requests for verdict in verdicts)),
        f"{max((verdict.most for verdict in verdicts), default=0)} of {limit}"
        + (f" (+{excess} frozen)" if excess > 0 else ""),
        str(sum(len(verdict.lost) for verdict in verdicts)),
        str(sum(verdict.lost_permits for verdict in verdicts)),
        f"{max((verdict.gap for verdict in verdicts), default=0.0):.1f} s",
        f"{slowest.recovery:.1f} / {slowest.promise:.1f}",
        str(sum(bool(verdict.violations) for verdict in verdicts)),
        str(sum(bool(verdict.not_done) for verdict in verdicts)),
    ]
