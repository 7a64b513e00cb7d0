"""Every setting: its default, values that are allowed, and errors for those that are not."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import pytest
from scrapy.settings import Settings

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import LimitTable
from semaphore_middleware.scrapy.settings import SETTINGS, SemaphoreSettings, is_enabled


def read(**settings: Any) -> SemaphoreSettings:
    return SemaphoreSettings.read(Settings(settings))


def refused(**settings: Any) -> str:
    with pytest.raises(SettingsError) as error:
        read(**settings)
    return str(error.value)


def test_defaults() -> None:
    settings = read()
    for name, setting in SETTINGS.items():
        assert setting.read(Settings({name: None})) == setting.read(Settings()), name
    assert settings.limits == LimitTable(Limit(8, 0, 0.5))
    assert (settings.metrics_port, settings.metrics_host) == (None, "127.0.0.1")
    assert is_enabled(Settings())
    assert settings.url is None
    assert settings.limits.of("example.com") == Limit(8, 0, 0.5)
    assert settings.scopes == ("host",)
    assert settings.lease == settings.recovery_wait == 15
    assert settings.acquire_timeout is None
    assert settings.prefix == "semaphore"
    assert settings.node == f"{socket.gethostname()}-{os.getpid()}"


def test_settings_are_read() -> None:
    settings = read(
        SEMAPHORE_REDIS_URL="redis://a/1",
        SEMAPHORE_SCOPES="domain, all",
        SEMAPHORE_LEASE=30,
        SEMAPHORE_ACQUIRE_TIMEOUT=0.5,
        SEMAPHORE_RECOVERY_WAIT=0,
        SEMAPHORE_PREFIX="crawl",
        SEMAPHORE_NODE="here",
    )
    assert (settings.url, settings.url_from) == ("redis://a/1", "SEMAPHORE_REDIS_URL")
    assert settings.scopes == ("domain", "all")
    assert (settings.lease, settings.acquire_timeout, settings.recovery_wait) == (30, 0.5, 0)
    assert (settings.prefix, settings.node) == ("crawl", "here")


@pytest.mark.parametrize(("value", "enabled"), [(True, True), (False, False), ("False", False)])
def test_everything_can_be_switched_off(value: object, enabled: bool) -> None:
    assert is_enabled(Settings({"SEMAPHORE_ENABLED": value})) is enabled


def test_an_empty_text_in_the_environment_is_no_address() -> None:
    assert read(SEMAPHORE_REDIS_URL="", SEMAPHORE_METRICS_HOST="").metrics_host == "127.0.0.1"
    assert read(SEMAPHORE_REDIS_URL="").url is None


def test_recovery_wait_is_the_lease_by_default() -> None:
    assert read(SEMAPHORE_LEASE=7).recovery_wait == 7
    assert read(SEMAPHORE_LEASE=7, SEMAPHORE_RECOVERY_WAIT=2).recovery_wait == 2


def test_a_turn_is_0_1_s_by_default_and_never_longer_than_0_3_of_the_lease() -> None:
    assert read().turn == 0.1
    assert read(SEMAPHORE_TURN=0).turn == 0
    assert read(SEMAPHORE_TURN="2", SEMAPHORE_LEASE=10).turn == 2
    assert read(SEMAPHORE_TURN=2.1, SEMAPHORE_LEASE=7).turn == 2.1
    assert read(SEMAPHORE_LEASE=0.1).turn == 0.03
    assert refused(SEMAPHORE_TURN=2.2, SEMAPHORE_LEASE=7) == (
        "SEMAPHORE_TURN = 2.2: allowed is a number >= 0 and <= 2.1 (0.3 of SEMAPHORE_LEASE)"
    )


def test_default_limit_comes_from_scrapys_settings() -> None:
    settings = read(CONCURRENT_REQUESTS_PER_DOMAIN=3, DOWNLOAD_DELAY=2, DOWNLOAD_DELAY_JITTER=0.1)
    assert settings.limits.of("example.com") == Limit(3, 2, 0.1)


def test_jitter_above_1_counts_as_1() -> None:
    assert read(DOWNLOAD_DELAY_JITTER=3).limits.default == Limit(8, 0, 1)


@pytest.mark.parametrize(("randomize", "jitter"), [(False, 0.0), (True, 0.5)])
def test_randomize_download_delay(randomize: bool, jitter: float) -> None:
    settings = read(DOWNLOAD_DELAY=1, RANDOMIZE_DOWNLOAD_DELAY=randomize)
    assert settings.limits.default == Limit(8, 1, jitter)


def test_places_of_the_server_s_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    assert read().url == "redis://environment"
    assert read().url_from == "REDIS_URL in the environment"
    assert read(REDIS_URL="redis://setting").url == "redis://setting"
    assert read(REDIS_URL="redis://setting").url_from == "REDIS_URL"
    both = read(REDIS_URL="redis://setting", SEMAPHORE_REDIS_URL="redis://ours")
    assert (both.url, both.url_from) == ("redis://ours", "SEMAPHORE_REDIS_URL")


def test_values_from_the_command_line() -> None:
    settings = read(
        CONCURRENT_REQUESTS_PER_DOMAIN="2",
        DOWNLOAD_DELAY="0.5",
        DOWNLOAD_DELAY_JITTER="0",
        DOWNLOAD_SLOTS='{"slot.example": {"concurrency": 1}}',
        SEMAPHORE_LEASE="20",
        SEMAPHORE_ACQUIRE_TIMEOUT="60",
        SEMAPHORE_RECOVERY_WAIT="1.5",
        SEMAPHORE_LIMITS='{"example.com": 4, "*.example.org": {"delay": 1}, "free.example": null,'
        ' "rate.example": {"rate": "10/m", "burst": 3}}',
    )
    assert (settings.lease, settings.acquire_timeout, settings.recovery_wait) == (20, 60, 1.5)
    assert settings.limits.of("example.net") == Limit(2, 0.5, 0)
    assert settings.limits.of("slot.example") == Limit(1, 0.5, 0)
    assert settings.limits.of("example.com") == Limit(4, 0.5, 0)
    assert settings.limits.of("www.example.org") == Limit(2, 1, 0)
    assert settings.limits.of("free.example") is None
    assert settings.limits.of("rate.example") == Limit(2, 0.5, 0, rate="10/m", burst=3)


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        (
            "SEMAPHORE_LEASE",
            [0, 0.05, -1, "soon", True, float("nan"), float("inf"), [], 86401],
            "number >= 0.1 and <= 86400",
        ),
        (
            "SEMAPHORE_TURN",
            [-0.1, 4.6, "x", True, float("nan"), float("inf"), []],
            "number >= 0 and <= 4.5 (0.3 of SEMAPHORE_LEASE)",
        ),
        ("SEMAPHORE_ACQUIRE_TIMEOUT", [-1, "x", False, float("inf")], "number >= 0"),
        ("SEMAPHORE_START_TIMEOUT", [0, -1, "x", False, float("inf")], "number >= 0.001"),
        ("SEMAPHORE_RECOVERY_WAIT", [-1, "x", True, float("nan")], "number >= 0"),
        (
            "SEMAPHORE_SCOPES",
            ["hosts", "HOST", 1, [1], ["host", "registered_domain"], {}, ["host", ""], "math.tau"],
            "a list of any of 'host', 'domain', 'ip', 'proxy', 'all', and of functions",
        ),
        ("SEMAPHORE_PREFIX", ["", 1, "a{1}", "}"], "text, not empty, without '{' and '}'"),
        ("SEMAPHORE_BACKOFF_CODES", ["x", [99], [600], [None], 7.5], "list of HTTP statuses"),
        ("SEMAPHORE_BACKOFF_START", [0, -1, "x", True, float("inf")], "number >= 0.001"),
        ("SEMAPHORE_BACKOFF_MAX", [0.5, -1, "x", float("nan")], "number >= 1"),
        ("SEMAPHORE_BACKOFF_TIMES", [-1, "x", True], "integer >= 0"),
        ("SEMAPHORE_OBEY_CRAWL_DELAY", ["maybe"], "True or False"),
        ("SEMAPHORE_MAX_CRAWL_DELAY", [-1, "x", float("inf")], "number >= 0"),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", [0, -1, 1.5, "1.5", "x", None], "integer >= 1"),
        ("DOWNLOAD_DELAY", [-1, "x", float("inf"), True], "number >= 0"),
        ("DOWNLOAD_DELAY_JITTER", [-1, "x"], "number >= 0"),
        ("SEMAPHORE_METRICS_HOST", [1, "a..example"], "an address to listen on"),
        ("SEMAPHORE_LIMITS", ["x", "[1]", "2", [1], 7], "dict of hosts to limits"),
    ],
)
def test_errors_name_the_setting_and_the_allowed_values(
    name: str, values: list[Any], allowed: str
) -> None:
    for value in values:
        message = refused(**{name: value})
        assert message.startswith(f"{name} = {value!r}: allowed is ")
        assert allowed in message


def test_a_path_that_cannot_be_loaded_is_named() -> None:
    for scopes in ("host, nowhere.at_all", ["nowhere.at_all"]):
        message = refused(SEMAPHORE_SCOPES=scopes)
        assert message.startswith("SEMAPHORE_SCOPES: ")
        assert "nowhere.at_all' cannot be loaded: ModuleNotFoundError" in message


def test_defaults_of_backoff_and_crawl_delay() -> None:
    settings = read()
    assert settings.backoff == Backoff(1, 300)
    assert (settings.backoff_codes, settings.backoff_times) == (frozenset({429, 503}), 10)
    assert (settings.obey_crawl_delay, settings.max_crawl_delay) == (False, 60)
    assert read(ROBOTSTXT_OBEY=True).obey_crawl_delay
    assert not read(ROBOTSTXT_OBEY=True, SEMAPHORE_OBEY_CRAWL_DELAY=False).obey_crawl_delay
    assert read(SEMAPHORE_BACKOFF_CODES="420,429").backoff_codes == {420, 429}
    assert read(SEMAPHORE_BACKOFF_CODES=[]).backoff_codes == set()
    assert read(SEMAPHORE_BACKOFF_START=400).backoff == Backoff(400, 400)
    assert "integer >= 0" in refused(SEMAPHORE_BACKOFF_TIMES=1.5)


def test_errors_in_a_limit_name_setting_and_key() -> None:
    assert refused(SEMAPHORE_LIMITS={"a.example": 0}).startswith(
        "SEMAPHORE_LIMITS['a.example'] = 0"
    )
    assert refused(SEMAPHORE_LIMITS='{"a.example": "2"}').startswith(
        "SEMAPHORE_LIMITS['a.example']"
    )
    assert refused(DOWNLOAD_SLOTS={"a.example": {"concurrency": 0}}).startswith(
        "DOWNLOAD_SLOTS['a.example']['concurrency'] = 0"
    )
    assert refused(SEMAPHORE_LIMITS={"a.example": {"rate": "60"}}).startswith(
        "SEMAPHORE_LIMITS['a.example']['rate'] = '60': allowed is "
    )
    assert refused(SEMAPHORE_LIMITS={"a.example": {"burst": 5}}).startswith(
        "SEMAPHORE_LIMITS['a.example']: a 'burst' needs a 'rate'; allowed is "
    )
    assert "unknown key 'limit'" in refused(SEMAPHORE_LIMITS={"a.example": {"limit": 2}})


def test_an_error_is_one_line() -> None:
    for message in (refused(SEMAPHORE_LEASE="1\n2"), refused(SEMAPHORE_LIMITS={"a\nb": 0})):
        assert re.fullmatch(".+", message)
