"""What a project's own code returns, raises or sets fails its own request, and nothing else."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings

from semaphore_middleware.core.observer import FAILURES
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from tests.support.crawls import Crawl, Log, errors, pages
from tests.support.servers import RedisServer
from tests.support.site import Site

SMALL = 7
HUGE = 10**5000  # Python does not convert it to text


class Evil:
    """All its methods raise an error, even `__repr__`."""

    def __repr__(self) -> str:
        raise RuntimeError("evil")

    __str__ = __bool__ = __eq__ = __len__ = __float__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("evil")


class EvilError(Evil, Exception):
    """An error whose `__repr__` raises another."""


VALUES: list[Any] = [b"bytes", math.nan, math.inf, SMALL, HUGE, Evil(), [Evil()], [HUGE], object()]
ERRORS = [*FAILURES, EvilError, RecursionError, StopIteration]


def answer(values: list[Any], request: Request | Response) -> Any:
    """What a project's function does: returns or raises the value with the number in the path."""
    number = request.url.rpartition("bad/")[2]
    value = values[int(number)] if number.isdigit() else None
    if isinstance(value, type):
        raise value
    return value


async def crawl_past(server: RedisServer, site: Site, bad: list[Request], **settings: Any) -> Crawl:
    """A crawl in which these requests fail, and two others do not."""
    good = pages(site, 2)
    crawl = Crawl(server, good[0], *bad, good[1], CONCURRENT_REQUESTS=1, **settings)
    await crawl.gave_back(2, site)
    assert sorted(site.arrivals) == ["/page/0", "/page/1"]
    assert len(crawl.spider.failures) == len(bad)
    return crawl


BAD_IN_REQUESTS = {
    "meta['semaphore_scope']": VALUES,
    "meta['semaphore_skip']": [value for value in VALUES if not isinstance(value, int)],
    "priority": [math.nan, math.inf, 10**400],  # a larger one ends the crawl in Scrapy's own queue
}


@pytest.mark.parametrize("door", BAD_IN_REQUESTS)
async def test_a_bad_value_in_a_request_fails_it_alone(
    server: RedisServer, site: Site, caplog: Log, door: str
) -> None:
    values = BAD_IN_REQUESTS[door]
    bad = pages(site, len(values), "/page/bad/")
    for request, value in zip(bad, values, strict=True):
        if door == "priority":
            request.priority = value
        else:
            request.meta[door[6:-2]] = value
    await crawl_past(server, site, bad)
    lines = errors(caplog)
    assert len(lines) == len(bad)
    assert all(line.startswith(f"<GET {site.url('/page/bad/')}") for line in lines)
    assert all(door in line and ("allowed is" in line or "raised" in line) for line in lines)


async def test_a_function_in_semaphore_scopes_fails_its_request_alone(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    values = [*VALUES, *ERRORS]
    function = partial(answer, values)
    bad = pages(site, len(values), "/page/bad/")
    await crawl_past(server, site, bad, SEMAPHORE_SCOPES=["host", function])
    lines = errors(caplog)
    assert len(lines) == len(bad)
    assert all("in SEMAPHORE_SCOPES" in line for line in lines)


async def test_a_function_in_semaphore_backoff_when_fails_nothing(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    values = [b"bytes", "text", math.nan, -1, Evil(), [], *ERRORS]
    bad = pages(site, len(values), "/page/bad/")
    when = partial(answer, values)
    crawl = Crawl(server, *bad, SEMAPHORE_BACKOFF_WHEN=when, SEMAPHORE_DOWN_AFTER=0)
    await crawl.gave_back(len(bad), site)
    assert len(crawl.spider.responses) == len(bad)
    lines = errors(caplog)
    assert len(lines) == len(bad)
    assert all(line.startswith("SEMAPHORE_BACKOFF_WHEN ") for line in lines)


SETTINGS = [
    *("SEMAPHORE_ENABLED", "SEMAPHORE_LIMITS", "SEMAPHORE_SCOPES", "SEMAPHORE_LEASE"),
    *("SEMAPHORE_NODE", "SEMAPHORE_JOB", "SEMAPHORE_BACKOFF_CODES", "SEMAPHORE_BACKOFF_WHEN"),
    *("SEMAPHORE_HISTORY", "SEMAPHORE_ROBOTSTXT_UNREACHABLE", "SEMAPHORE_METRICS"),
]


@pytest.mark.parametrize("value", [b"bytes", math.nan, [Evil()], Evil()], ids=type)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_bad_setting_is_an_error_of_one_line(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name) as raised:
        SemaphoreSettings.read(Settings({name: value}))
    assert "\n" not in str(raised.value)
