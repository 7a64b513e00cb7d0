"""What `watch` draws, for what was seen: exact lines, and never more than fit."""

from __future__ import annotations

import pytest

from semaphore_middleware.console.cli.history import SAMPLES, History
from semaphore_middleware.console.cli.tables import recovery_wait, screen, show, sparkline
from semaphore_middleware.console.snapshot import Snapshot
from semaphore_middleware.console.starts import StartsMeter
from semaphore_middleware.model.inspection import Inspection, Member
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "commands.md").read_text("utf-8")
SERVER = "redis://redis.internal:6379/0"
WAIT = "No permit is granted for another 9.2 s: the server is new, or may have lost its data."


def seen(
    scope: str, held: int = 0, waiting: int = 0, started: int = 0, **more: object
) -> Inspection:
    nodes = (Member("n", held, waiting, 1.0, 90.0, 15.0),) if held or waiting else ()
    fields = {"limit": 4, "limit_max": 4, "started": started} | more
    return Inspection(scope=scope, members=nodes, **fields)  # type: ignore[arg-type]


class Watched:
    """What `watch` has seen, survey by survey."""

    def __init__(self) -> None:
        self.history = History()
        self.snapshot = Snapshot.of([], [])
        self._meter = StartsMeter()

    def note(self, scopes: list[Inspection], now: float) -> None:
        self.snapshot = Snapshot.of(scopes, [], self._meter.note(scopes, now))
        self.history.note(self.snapshot)

    @property
    def scopes(self) -> list[str]:
        return [track.row.scope for track in self.history.tracks]


def drawn(watched: Watched, width: int = 80, height: int = 24, problem: str = "") -> list[str]:
    tracks, totals = watched.history.tracks, watched.snapshot.totals
    return screen(tracks, totals, SERVER, width, height, problem).plain.split("\n")


def test_a_screen_of_80_by_24() -> None:
    watched = Watched()
    for look in range(10):
        watched.note(
            [
                seen("www.example.org", 4, 12, 10 + 6 * look, rate="12/s", burst=9),
                seen("shop.example.org", held=look % 5, started=2 * look),
                seen("api.example.net", held=1, waiting=3, started=look, delay=0.25),
                seen("a-very-long-name.of.a-department.example.edu", paused=True, backoff_left=9.0),
                seen("slow.example", limit=2, limit_max=8, backoff_left=90.0),
            ],
            now=100 + 0.5 * look,
        )
    lines = drawn(watched)
    assert lines[:7] == [
        "redis://redis.internal:6379/0        5 scopes  9 held  15 waiting  18.0 starts/s",
        "scope                 held         waiting longest starts/s",
        "www.example.org        4/4 ███████      12    90 s     12.0 ███████ at 12/s (9)",
        "api.example.net        1/4 ▂▂▂▂▂▂▂       3    90 s      2.0 ███████ every 0.25 s",
        "shop.example.org       4/4 ▆█ ▂▄▆█       0       -      4.0 ███████ -",
        "a-very-lo…mple.edu     0/4               0       -      0.0         paused",
        "slow.example       0/2 (8)               0       -      0.0         backoff 90 s",
    ]
    for line in lines[:7]:
        assert f"\n    {line}\n" in PAGE
    assert lines[7:] == [""] * 16 + ["q quits"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 10), (20, 4), (5, 2)])
def test_it_fits_whatever_the_size(width: int, height: int) -> None:
    watched = Watched()
    for look in range(3):
        watched.note([seen(f"host-{i}.example", 3, i % 7, look) for i in range(3000)], now=look)
    lines = drawn(watched, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    if width >= 60:
        assert lines[-1] == f"and {3000 - height + 4:,} scopes more; q quits"
        assert lines[0].endswith("3,000 scopes  9,000 held  8,994 waiting  3000.0 starts/s")


@pytest.mark.parametrize(("left", "shown"), [(30.0, "down, 30 s"), (0.0, "down")])
def test_a_host_that_is_down_is_seen(
    left: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    down = seen("a", down_for=90.0, backoff_left=left)
    watched = Watched()
    watched.note([down], now=0)
    assert "down 90 s" in drawn(watched)[2]
    show(Snapshot.of([down], []), SERVER, members=False, nodes=False)
    assert shown in capsys.readouterr().out.splitlines()[1]


def test_a_wait_of_the_server_stands_before_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = Snapshot.of([seen("a")], [], recovery_left=9.2)
    assert recovery_wait(snapshot.totals) == WAIT
    show(snapshot, SERVER, members=False, nodes=False)
    assert capsys.readouterr().out.splitlines()[:2] == [WAIT, ""]
    assert recovery_wait(Snapshot.of([], []).totals) == ""


def test_a_problem_stands_where_the_eye_is() -> None:
    assert drawn(Watched(), problem="no answer for 3 s")[-1] == "no answer for 3 s"


def test_a_site_that_falls_idle_stays_in_its_place_until_it_is_forgotten() -> None:
    watched = Watched()
    watched.note([seen("a", held=2, started=5)], now=0)
    for look in range(SAMPLES):
        assert watched.scopes == ["a"]
        watched.note([], now=1 + look)
    assert watched.scopes == []


def test_of_a_bar_even_the_smallest_is_seen() -> None:
    assert sparkline([0, 1, 50, 100, 101], 100, 8) == "    ▁▄██"
    assert sparkline([0.001], 1000, 1) == "▁"
    assert sparkline([0, 0], 0, 3) == "   "
    assert sparkline(range(100), 99, 3) == "███"
