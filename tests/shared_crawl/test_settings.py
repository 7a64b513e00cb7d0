"""The settings of a shared crawl: what is allowed, and what is not set."""

from __future__ import annotations

from typing import Any

import pytest

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.shared_crawl.settings import CHECKS, CrawlSettings, values_of
from tests.support.crawls import ready_crawler

WRONG: dict[str, Any] = {
    "CRAWL_LEASE": "15 s",
    "CRAWL_MAX_PAGES": -1,
    "CRAWL_MAX_PAGES_PER_SITE": 1.5,
    "CRAWL_PREFIX": "{crawl}",
    "CRAWL_RECRAWL_AFTER": "a week",
    "CRAWL_RUN": "Monday\n",
    "CRAWL_START_ONCE": "maybe",
    "CRAWL_WAIT": "long",
    "SEMAPHORE_REDIS_CREDENTIALS": 3,
    "SEMAPHORE_REDIS_OPTIONS": "ssl_ca_certs",
    "SEMAPHORE_START_TIMEOUT": 0,
}


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - {"CRAWL_START_KEY", "CRAWL_VERSION"}))
def test_a_wrong_value_is_named_with_what_is_allowed(name: str) -> None:
    with pytest.raises(SettingsError) as told:
        values_of({name: WRONG[name]})
    value = WRONG[name]
    is_secret = name.startswith("SEMAPHORE_REDIS_")
    shown = f"<{type(value).__name__}, not shown>" if is_secret else repr(value)
    assert str(told.value).startswith(f"{name} = {shown}: allowed is ")


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("evil")

    __str__ = __bool__ = __eq__ = __repr__  # type: ignore[assignment]


@pytest.mark.parametrize("name", CHECKS)
def test_a_value_that_raises_is_a_wrong_value(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} = <Evil, which cannot be shown>"):
        values_of({name: Evil()}, [name])


def test_what_is_not_set_has_its_default() -> None:
    given: dict[str, Any] = dict.fromkeys(CHECKS, "")
    assert CrawlSettings("redis://a", **values_of(given)) == CrawlSettings("redis://a")
    assert values_of(dict.fromkeys(CHECKS)) == {}


def test_a_node_has_its_name_and_knows_where_its_server_is_set() -> None:
    given: dict[str, Any] = {
        "SEMAPHORE_REDIS_URL": "redis://a",
        "SEMAPHORE_NODE": "n",
        "CRAWL": "shop",
    }
    crawler = ready_crawler(**given)
    read = CrawlSettings.from_crawler(crawler)
    assert (read.url_from, read.node, read.name) == ("SEMAPHORE_REDIS_URL", "n", "shop")
