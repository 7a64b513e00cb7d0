"""Feeds that lose items of other nodes are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.settings import Settings

from semaphore_middleware.shared_crawl.feeds import Feeds, FeedUnwritableError


def feeds(feeds: dict[Any, dict[str, Any]], *files: Any) -> Feeds:
    engine: Any = SimpleNamespace(feed_files=lambda: files)
    return Feeds(engine, Settings({"FEEDS": feeds}))


OVERWRITTEN = {"pages.jl": {"overwrite": True}, "s3://bucket/pages.jl": {}}
KEPT: dict[Any, dict[str, Any]] = {
    "pages.jl": {},
    Path("pages.csv"): {"overwrite": False},
    "stdout:": {"overwrite": True},
    "s3://bucket/%(time)s.jl": {},
}


def test_a_feed_that_each_node_overwrites_is_named(caplog: pytest.LogCaptureFixture) -> None:
    feeds(KEPT)
    assert not caplog.messages
    feeds(OVERWRITTEN)
    assert [uri in line for uri, line in zip(OVERWRITTEN, caplog.messages, strict=True)] == [
        True
    ] * 2


def test_a_file_of_two_nodes_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages, own = tmp_path / "pages.json", tmp_path / "own.json"
    with pages.open("ab") as first, pages.open("ab") as second, own.open("ab") as third:
        one, two = feeds({}, first), feeds({}, second, third)
        first.write(b"[")
        one.flush()
        assert pages.read_bytes() == b"["
        assert not caplog.messages
        two.flush()
        two.flush()
        (line,) = caplog.messages
        assert str(pages) in line


def test_a_full_disk_is_named() -> None:
    with Path("/dev/full").open("ab") as file:
        file.write(b"[")
        problem = "Cannot write to the feed's file /dev/full: No space left on device"
        with pytest.raises(FeedUnwritableError, match=problem):
            feeds({}, file).flush()
        file.raw.close()  # its contents cannot be written
