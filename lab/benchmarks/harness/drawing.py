"""How the pictures look: on white, so that they can be read in a dark README too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
INK, FAINT, RED, EXCESS = "#333333", "#d0d0d0", "#c1121f", "#e5646f"
COLORS = "#0072b2", "#8a8a8a", "#e69f00"  # told apart by everyone
TITLE: Any = {"loc": "left", "fontsize": 9, "fontweight": "bold", "color": INK}
STYLE: Any = {
    "svg.hashsalt": "scrapy-semaphore",  # the same file from the same figures
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def _saved(file: Path, height: float) -> Iterator[Figure]:
    """A figure to draw on, which is saved at the end of the `with`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(7, height))
        yield figure
        figure.tight_layout()
        figure.savefig(file, facecolor="white", metadata={"Creator": None, "Date": None})


def draw_open_requests(
    file: Path, steps: Mapping[str, Sequence[tuple[float, int]]], limit: int, seconds: float
) -> None:
    """One under the other, on one scale: the site's open requests over time."""
    tops = [max(2 * limit, *(count + 1 for _, count in changes)) for changes in steps.values()]
    with _saved(file, height=5) as figure:
        rows = figure.subplots(len(steps), sharex=True, height_ratios=tops)
        for axes, color, top, name in zip(rows, COLORS, tops, steps, strict=True):
            _area(axes, color, [step for step in steps[name] if step[0] < seconds], limit, seconds)
            axes.set_title(name, **TITLE)
            axes.set_ylim(0, top)
            axes.set_yticks(range(0, top, limit if top < 20 else 10))
        rows[0].text(seconds, limit, f" limit {limit}", color=RED, va="center")
        rows[1].set_ylabel("requests open at the site")
        rows[-1].set_xlabel("seconds")
        rows[-1].set_xlim(0, seconds)


def _area(
    axes: Axes, color: str, steps: Sequence[tuple[float, int]], limit: int, seconds: float
) -> None:
    counts = [(0.0, steps[0][1]), *steps]
    _stairs(axes, counts, seconds, EXCESS)
    _stairs(axes, [(when, min(count, limit)) for when, count in counts], seconds, color)
    axes.axhline(limit, color=RED, linewidth=1)


def _stairs(axes: Axes, counts: Sequence[tuple[float, int]], end: float, color: str) -> None:
    # Only what changes is drawn, which keeps the file small.
    changes = [counts[0], *(new for old, new in pairwise(counts) if new[1] != old[1])]
    times = [*(when for when, _ in changes), end]
    axes.stairs([count for _, count in changes], times, fill=True, color=color, linewidth=0)


def draw_pages(file: Path, crawled: Mapping[str, Sequence[float]], pages: int) -> None:
    """How many pages crawls have had over time."""
    end = 1.05 * max(times[-1] for times in crawled.values())
    with _saved(file, height=3) as figure:
        axes = figure.subplots()
        for color, (name, times) in zip(COLORS, crawled.items(), strict=True):
            counts = [*range(len(times) + 1), len(times)]
            label = f"{name}: {len(times)} pages"
            axes.step([0.0, *times, end], counts, where="post", color=color, label=label)
        axes.legend(loc="center right", frameon=False)
        axes.set_xlabel("seconds")
        axes.set_ylabel("pages")
        axes.set_xlim(0, end)
        axes.set_ylim(0, 1.05 * pages)
