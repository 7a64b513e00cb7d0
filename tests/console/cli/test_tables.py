"""Times, names and limits as people read them; tables and the screen of `watch`, which fit."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from semaphore_middleware.console.cli.formatting import (
    count,
    held_of,
    rate_word,
    set_time,
    time_of,
    who,
)
from semaphore_middleware.console.cli.tables import (
    SAMPLES,
    Column,
    Tracks,
    cut,
    notice_of,
    screen,
    shortened,
    show,
    sparkline,
    table,
)
from semaphore_middleware.console.cli.watch import View
from semaphore_middleware.console.poller import WINDOW, StartsMeter
from semaphore_middleware.console.snapshot import Choice, Snapshot
from semaphore_middleware.model.inspection import Inspection, Member, ServerState
from semaphore_middleware.model.limits import LIMITLESS, Limit
from tests.support.paths import REPOSITORY

KEYS = "q quit  s sort  / filter  w waiting  ↑↓ scroll"
PAGE = (REPOSITORY / "docs" / "commands.md").read_text("utf-8")
SERVER = "redis://redis.internal:6379/0"
WAIT = "No permit is granted for another 9.2 s: the server is new, or may have lost its data."


# Words ------------------------------------------------------------------------------------------


def test_times_are_short() -> None:
    for seconds, shown in (
        *((0, "0 s"), (-1, "0 s"), (0.0001, "1 ms"), (0.0994, "99 ms"), (0.1, "0.1 s")),
        *((9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min")),
        *((7200, "2 h"), (172800, "2 d"), (1e7, "116 d")),
    ):
        assert time_of(seconds) == shown


def test_what_was_set_is_shown_as_it_was_set_and_one_is_not_many() -> None:
    assert [set_time(s) for s in (0.25, 1.0, 90.0, 0.001)] == ["0.25 s", "1 s", "90 s", "0.001 s"]
    rates = [("60/m", 1), ("60/m", 10), ("none", None), (None, None)]
    assert [rate_word(*rate) for rate in rates] == ["60/m", "60/m (10)", "none", "-"]
    assert [count(n, "permit") for n in (0, 1, 2000)] == ["0 permits", "1 permit", "2,000 permits"]
    names = ("alice@desk-0123456789ab", "node-12")
    assert [who(name) for name in names] == ["alice@desk", "node-12"]


def test_a_limit_that_adapts_shows_what_it_may_grow_to() -> None:
    for limit, most, shown in (
        *((None, None, "0/-"), (3, 3, "0/3"), (2, 8, "0/2 (8)"), (5, LIMITLESS, "0/5 (∞)")),
        (LIMITLESS, LIMITLESS, "0/∞"),
    ):
        assert held_of(Inspection("s", limit, (), most)) == shown


# Tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(3, 40))
def test_names_are_shortened_in_the_middle(width: int) -> None:
    for name in ("www.a-long-name.example.org", "日本語.日本語.example", "x"):
        short = cut(name, width)
        assert cell_len(short) <= width
        if cell_len(name) <= width:
            assert short == name
        else:
            head, tail = short.split("…")
            assert name.startswith(head)
            assert name.endswith(tail)
            assert abs(cell_len(head) - cell_len(tail)) <= 3


def test_columns_with_nothing_in_them_go_first_and_then_names_are_shortened() -> None:
    columns: list[Column[tuple[str, ...]]] = [
        Column("name", lambda row: row[0], right=False, is_name=True),
        Column("number", lambda row: row[1]),
        Column("spare", lambda row: row[2], right=False, is_spare=True),
        Column("kept", lambda row: row[3], right=False, is_spare=True),
    ]
    rows = [("www.a-long-name.example.org", "1", "-", "-"), ("b", "22", "-", "here")]

    def lines(width: int) -> list[str]:
        return [line.plain for line in table(columns, rows, width)]

    assert lines(60) == [
        "name                         number  spare  kept",
        "www.a-long-name.example.org       1  -      -",
        "b                                22  -      here",
    ]
    assert lines(36) == [
        "name                    number  kept",
        "www.a-long-…xample.org       1  -",
        "b                           22  here",
    ]
    # However little room there is, a name can still be told.
    assert lines(10)[1] == "www.a-lo…ple.org       1  -"


def test_names_are_cut_where_they_are_alike() -> None:
    shops = [f"www.customers-of-acme.eu-west-{i:04}.shops.example.com" for i in (7, 8, 1234)]
    assert shortened(shops, 30) == [
        "www.…st-0007.shops.example.com",
        "www.…st-0008.shops.example.com",
        "www.…st-1234.shops.example.com",
    ]
    assert shortened([*shops, "x"], 16) == [
        "w…0007.shop….com",
        "w…0008.shop….com",
        "w…1234.shop….com",
        "x",
    ]


# The screen -------------------------------------------------------------------------------------


def seen(
    scope: str, held: int = 0, waiting: int = 0, started: int = 0, **more: object
) -> Inspection:
    longest = 90.0 if waiting else 0.0
    nodes = (Member("n", held, waiting, 1.0, longest, 15.0, Limit(4)),) if held or waiting else ()
    fields = {"limit": 4, "limit_max": 4, "started": started} | more
    return Inspection(scope=scope, members=nodes, **fields)  # type: ignore[arg-type]


class Watched:
    """What `watch` has seen, survey by survey."""

    def __init__(self) -> None:
        self.tracks = Tracks()
        self.view = View(Choice())
        self.snapshot = Snapshot.of([], [])
        self._meter = StartsMeter()

    def note(self, scopes: list[Inspection], now: float) -> None:
        self.snapshot = Snapshot.of(scopes, [], self._meter.note(scopes, now))
        self.tracks.note(self.snapshot)

    @property
    def shown(self) -> list[str]:
        return [track.row.scope for track in self.tracks.chosen(self.view.choice)]

    def drawn(self, width: int = 80, height: int = 24, problem: str = "") -> list[str]:
        tracks, size = self.tracks.chosen(self.view.choice), (width, height)
        drawn = screen(tracks, self.snapshot, SERVER, self.view, size, problem)
        return drawn.plain.split("\n")


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
    lines = watched.drawn()
    assert lines[:7] == [
        "redis://redis.internal:6379/0        5 scopes  9 held  15 waiting  18.0 starts/s",
        "scope                 held         waiting longest starts/s",
        "www.example.org        4/4 ███████      12    90 s     12.0 ███████ at 12/s (9)",
        "api.example.net        1/4 ▂▂▂▂▂▂▂       3    90 s      2.0 ███████ every 0.25 s",
        "shop.example.org       4/4 ▆█ ▂▄▆█       0       -      4.0 ███████ -",
        "slow.example       0/2 (8)               0       -      0.0         backoff 90 s",
        "a-very-lo…mple.edu     0/4               0       -      0.0         paused",
    ]
    assert all(f"\n    {line}\n" in PAGE for line in lines[:7])
    assert lines[7:] == [""] * 16 + ["1-5 of 5 by waiting   " + KEYS]
    assert watched.drawn(problem="no answer for 3 s")[-1] == "no answer for 3 s"


def test_it_fits_whatever_the_size() -> None:
    watched = Watched()
    for look in range(2):
        watched.note([seen(f"host-{i}.example", 3, i % 7, look) for i in range(3000)], now=look)
    for width, height in ((80, 24), (200, 50), (60, 10), (20, 4), (5, 2)):
        lines = watched.drawn(width, height)
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        if width >= 60:
            assert lines[-1] == f"1-{height - 4} of 3,000 by waiting   {KEYS}"[:width]
            assert lines[0].endswith("3,000 scopes  9,000 held  8,994 waiting  3000.0 starts/s")


def test_keys_sort_filter_scroll_and_quit() -> None:
    watched = Watched()
    busy = seen("z.example", held=4, waiting=1)
    watched.note([busy, *(seen(f"a{i}.example", held=1) for i in range(4))], now=0)
    watched.note([busy, *(seen(f"a{i}.example", held=1) for i in range(4))], now=1)

    def after(*keys: str) -> list[str]:
        assert all(map(watched.view.press, keys))
        return [line.split()[0] for line in watched.drawn(height=6)[2:4]]

    assert after() == ["z.example", "a0.example"]
    assert after("s", "s", "s") == ["a0.example", "a1.example"]
    assert watched.drawn(height=6)[-1].startswith("1-2 of 5 by host ")
    assert after("j", "\x1b[B") == ["a2.example", "a3.example"]
    assert after("G", "\x1b[5~") == ["a1.example", "a2.example"]
    assert watched.view.press("w")
    assert watched.shown == ["z.example"]
    assert watched.drawn(height=6)[-1].startswith("1-1 of 1 that wait by host ")
    assert all(map(watched.view.press, ("w", "/", *"qA3\x7f2")))
    assert watched.drawn(height=6)[-1] == "filter: qA2█  Enter keeps it, Esc drops it"
    assert watched.shown == []
    assert all(map(watched.view.press, ("\x1b", "/", *"A2", "\r")))
    assert watched.shown == ["a2.example"]
    assert watched.drawn(height=6)[-1].startswith("1-1 of 1 with 'A2' by host ")
    assert not watched.view.press("q")


@pytest.mark.parametrize(
    ("down_for", "left", "live", "shown"),
    [
        (90.0, 30.0, "down 90 s", "  down, 30 s  "),
        (90.0, 0.0, "down 90 s", "  down  "),
        (None, 200.0, "backoff 3 min", "  3 min  "),
    ],
)
def test_a_host_that_is_down_or_refuses_and_a_server_that_waits_are_seen(
    down_for: float | None, left: float, live: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    down = seen("a", down_for=down_for, backoff_left=left)
    watched = Watched()
    watched.note([down], now=0)
    assert live in watched.drawn()[2]
    snapshot = Snapshot.of([down], [], server=ServerState(recovery_left=9.2))
    show(snapshot, SERVER, members=False, nodes=False)
    wait, empty, _, row = capsys.readouterr().out.splitlines()
    assert (wait, empty) == (WAIT, "")
    assert shown in row
    assert notice_of(Snapshot.of([], [])) == ""


def test_who_asks_for_a_stricter_limit_and_that_nobody_calls_is_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [("host-1-90be77aa01f2", 1), ("host-2-90be77aa01f3", 1), ("fleet", 8)]
    members = [Member(node, 1, 0, 1.0, 0.0, 9.0, Limit(limit)) for node, limit in asked]
    snapshot = Snapshot.of([Inspection("a", 1, tuple(members))], [], server=ServerState(0.0, 90.0))
    show(snapshot, SERVER, members=False, nodes=False)
    notice, _, _, row = capsys.readouterr().out.splitlines()
    assert notice == (
        "No node has called for 90 s. What is held is free within a lease after one does."
    )
    assert row.endswith("host-1 +1")


def test_a_site_that_falls_idle_stays_in_its_place_until_it_is_forgotten() -> None:
    watched = Watched()
    watched.note([seen("a", held=2, started=5)], now=0)
    for look in range(SAMPLES):
        assert watched.shown == ["a"]
        watched.note([], now=1 + look)
    assert watched.shown == []


def test_of_a_bar_even_the_smallest_is_seen() -> None:
    assert sparkline([0, 1, 50, 100], 100, 8) == "     ▁▄█"
    assert sparkline([0.001], 1000, 1) == "▁"
    assert sparkline([0, 0], 0, 3) == "   "
    assert sparkline(range(100), 99, 3) == "███"


# Starts a second --------------------------------------------------------------------------------


def counted(**started: int) -> list[Inspection]:
    return [Inspection(scope, 4, (), 4, started=count) for scope, count in started.items()]


def test_starts_a_second_are_those_since_the_survey_before() -> None:
    meter = StartsMeter()
    first = meter.note(counted(s=100, idle=7), 10.0)
    assert first is None
    snapshot = Snapshot.of(counted(s=100), [], first)
    assert snapshot.starts_of("s") is snapshot.totals.starts_per_second is None
    # The first went on, the second was idle meanwhile and began anew, the third is new.
    now = counted(s=130, idle=3, new=5)
    starts = meter.note(now, 12.0)
    assert starts == {"s": 15.0, "idle": 1.5, "new": 2.5}
    assert Snapshot.of(now, [], starts).totals.starts_per_second == 19.0


def test_they_are_those_of_late() -> None:
    meter = StartsMeter()
    for look, started in enumerate([7, 9, 11]):
        starts = meter.note(counted(a=started), look / 2)
    assert starts == {"a": 4.0}
    for look in range(WINDOW):
        starts = meter.note(counted(a=11), 2.0 + look)
    assert starts == {"a": 0.0}


def test_the_total_counts_the_starts_of_scopes_that_are_gone() -> None:
    meter = StartsMeter()
    meter.note([], 0.0)
    meter.note(counted(short=4), 1.0)
    starts = meter.note([], 2.0)
    assert starts == {"short": 2.0}
    assert Snapshot.of([], [], starts).totals.starts_per_second == 2.0
