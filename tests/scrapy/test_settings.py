"""Every setting: its default, values that are allowed, and errors for those that are not."""

import ssl
from typing import Any

import pytest
from redis.connection import Connection, parse_url
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from semaphore_middleware import FairSemaphore, Limit, SettingsError
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.settings import SETTINGS
from semaphore_middleware.scrapy.settings import (
    ATTRIBUTE_PRIORITY,
    SemaphoreSettings,
    is_enabled,
    log_origin_of_server,
    log_start,
    warn_of_mistakes,
)
from tests.support.crawls import Log, Patch


def read(**settings: Any) -> SemaphoreSettings:
    return SemaphoreSettings.read(Settings(settings))


def refused(**settings: Any) -> str:
    with pytest.raises(SettingsError) as error:
        read(**settings)
    return str(error.value)


NAN, INF = float("nan"), float("inf")


def test_defaults() -> None:
    for name, setting in SETTINGS.items():
        assert setting.read(Settings({name: None})) == setting.read(Settings()), name
    assert is_enabled(Crawler(Spider))
    assert not is_enabled(Crawler(Spider, {"SEMAPHORE_ENABLED": "False"}))
    # An empty text in the environment is no address.
    assert read(SEMAPHORE_METRICS="").metrics is None
    assert read(SEMAPHORE_REDIS_URL="").url is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"SEMAPHORE_SCOPES": "domain, all"}, {"scopes": ("domain", "all")}),
        ({"SEMAPHORE_PREFIX": "crawl", "SEMAPHORE_NODE": "a"}, {"prefix": "crawl", "node": "a"}),
        ({"SEMAPHORE_ACQUIRE_TIMEOUT": "60"}, {"acquire_timeout": 60}),
        ({"SEMAPHORE_LEASE": "7"}, {"lease": 7, "recovery_wait": 7}),
        ({"SEMAPHORE_LEASE": 7, "SEMAPHORE_RECOVERY_WAIT": 0}, {"lease": 7, "recovery_wait": 0}),
        ({"SEMAPHORE_METRICS": 7}, {"metrics": "127.0.0.1:7"}),
        ({"SEMAPHORE_METRICS": "9410"}, {"metrics": "127.0.0.1:9410"}),
        ({"SEMAPHORE_METRICS": "0.0.0.0:0"}, {"metrics": "0.0.0.0:0"}),
        ({"SEMAPHORE_METRICS": "[::1]:9410"}, {"metrics": "[::1]:9410"}),
        ({"SEMAPHORE_METRICS": "node-1.internal:9410"}, {"metrics": "node-1.internal:9410"}),
        ({"SEMAPHORE_BACKOFF_CODES": "420,429"}, {"backoff_codes": {420, 429}}),
        ({"SEMAPHORE_BACKOFF_CODES": []}, {"backoff_codes": set()}),
        ({"SEMAPHORE_BACKOFF_CODES": "[]"}, {"backoff_codes": set()}),
        ({"SEMAPHORE_BACKOFF_CODES": "[429]"}, {"backoff_codes": {429}}),
        ({"SEMAPHORE_BACKOFF_CODES": [429, 999]}, {"backoff_codes": {429, 999}}),  # of LinkedIn
        ({"SEMAPHORE_BACKOFF_START": 400}, {"backoff": Backoff(400, 400)}),
    ],
)
def test_settings_are_read(given: dict[str, Any], expected: dict[str, Any]) -> None:
    settings = read(**given)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_a_check_waits_for_a_moment_only(monkeypatch: Patch) -> None:
    assert read().start_timeout is None
    monkeypatch.setenv("SCRAPY_CHECK", "true")  # by `scrapy check`
    assert read().start_timeout == 5
    assert read(SEMAPHORE_START_TIMEOUT=60).start_timeout == 60


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": "3", "DOWNLOAD_DELAY": "2"}, Limit(3, 2, 0.5)),
        ({"DOWNLOAD_DELAY": 2, "DOWNLOAD_DELAY_JITTER": 0.1}, Limit(8, 2, 0.1)),
        ({"DOWNLOAD_DELAY_JITTER": 3}, Limit(8, 0, 1)),
        ({"RANDOMIZE_DOWNLOAD_DELAY": False}, Limit(8, 0, 0)),
        ({"RANDOMIZE_DOWNLOAD_DELAY": True}, Limit(8, 0, 0.5)),
    ],
)
def test_default_limit_comes_from_scrapys_settings(given: dict[str, Any], limit: Limit) -> None:
    assert read(**given).limits.of("example.com") == limit


def test_each_part_of_a_limit_names_its_source() -> None:
    settings = Settings({"DOWNLOAD_DELAY": 2, "SEMAPHORE_LIMITS": {"a.example": {"rate": "1/s"}}})
    settings.set("CONCURRENT_REQUESTS_PER_DOMAIN", 3, ATTRIBUTE_PRIORITY)
    settings.set("RANDOMIZE_DOWNLOAD_DELAY", False, "spider")
    limits = SemaphoreSettings.read(settings).limits
    assert limits.default.sources == {
        "concurrency": "the spider's max_concurrent_requests",
        "delay": "DOWNLOAD_DELAY",
        "jitter": "RANDOMIZE_DOWNLOAD_DELAY in the spider's custom_settings",
    }
    rate = {"rate": "SEMAPHORE_LIMITS['a.example']"}
    assert limits.entry_of("a.example").sources == {**limits.default.sources, **rate}
    settings.set("DOWNLOAD_DELAY", 0, "cmdline")
    sources = SemaphoreSettings.read(settings).limits.default.sources
    assert sources["delay"] == "DOWNLOAD_DELAY on the command line"
    concurrency = read().limits.default.sources["concurrency"]
    assert concurrency == "Scrapy's default of CONCURRENT_REQUESTS_PER_DOMAIN"


@pytest.mark.parametrize(
    ("name", "priority", "where"),
    [
        ("DOWNLOAD_DELAY", ATTRIBUTE_PRIORITY, "the spider's download_delay"),
        (
            "CONCURRENT_REQUESTS_PER_DOMAIN",
            ATTRIBUTE_PRIORITY,
            "the spider's max_concurrent_requests",
        ),
        ("CONCURRENT_REQUESTS", "cmdline", "CONCURRENT_REQUESTS on the command line"),
        (
            "RANDOMIZE_DOWNLOAD_DELAY",
            "spider",
            "RANDOMIZE_DOWNLOAD_DELAY in the spider's custom_settings",
        ),
        ("DOWNLOAD_DELAY_JITTER", "project", "DOWNLOAD_DELAY_JITTER"),
        ("RETRY_ENABLED", "cmdline", "RETRY_ENABLED on the command line"),
        ("HTTPERROR_ALLOW_ALL", "project", "HTTPERROR_ALLOW_ALL"),
        ("RETRY_HTTP_CODES", "spider", "RETRY_HTTP_CODES in the spider's custom_settings"),
    ],
)
def test_errors_name_where_one_of_scrapys_settings_was_set(
    name: str, priority: int | str, where: str
) -> None:
    settings = Settings()
    settings.set(name, "two", priority)
    with pytest.raises(SettingsError, match=f"^{where} = 'two': allowed is "):
        SemaphoreSettings.read(settings)


@pytest.mark.parametrize("name", ["a.example", "*.example", "domain:example.org"])
def test_limits_of_a_kind_that_no_request_has_are_a_warning(name: str, caplog: Log) -> None:
    given = {"SEMAPHORE_LIMITS": {name: 2}, "SEMAPHORE_SCOPES": ["proxy"]}
    settings = read(**given)
    warn_of_mistakes(Settings(given), settings)
    (line,) = caplog.messages
    kind = "domain" if name.startswith("domain") else "host"
    assert f"of the kind {kind!r}, but SEMAPHORE_SCOPES lacks {kind!r}" in line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"SEMAPHORE_LIMITS": {"a.b": None, "*.a.b": 3}}, ["a.b (no limit), *.a.b (limit 3)."]),
        (
            {
                "SEMAPHORE_LIMITS": dict.fromkeys("abcdefghi", 1),
                "DOWNLOAD_SLOTS": {name: {"concurrency": 2} for name in "axy"},
            },
            [
                ", ".join([f"{name} (limit 1)" for name in "abcdefghi"])
                + ", x (limit 2), and 1 more."
            ],
        ),
    ],
)
def test_limits_of_their_own_are_logged(
    given: dict[str, Any], said: list[str], caplog: Log
) -> None:
    caplog.set_level("INFO")
    log_start("n", "redis://a", "semaphore", False, read(**given))
    first, *others = caplog.messages
    default = "limit 8 (Scrapy's default of CONCURRENT_REQUESTS_PER_DOMAIN)"
    assert first.endswith(f" at redis://a. Default of a site: {default}.")
    assert others == [f"Limits of their own: {text}" for text in said]


def test_the_default_limit_is_of_the_first_kind(caplog: Log) -> None:
    caplog.set_level("INFO")
    for first, text in (("domain", "a domain"), ("all", "all requests"), (len, "a name")):
        log_start("n", "redis://a", "semaphore", False, read(SEMAPHORE_SCOPES=[first, "host"]))
        assert f"Default of {text}: limit 8" in caplog.messages[-1]


def test_places_of_the_server_s_url(monkeypatch: Patch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    places: list[tuple[dict[str, Any], str, str]] = [
        ({}, "redis://environment", "REDIS_URL in the environment"),
        ({"REDIS_URL": "redis://b"}, "redis://b", "REDIS_URL"),
        ({"REDIS_URL": "b", "SEMAPHORE_REDIS_URL": "a"}, "a", "SEMAPHORE_REDIS_URL"),
    ]
    for given, url, place in places:
        assert (read(**given).url, read(**given).url_from) == (url, place)


@pytest.mark.filterwarnings("ignore:.*retry_on_timeout")  # of scrapy-redis
@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"REDIS_HOST": "a.example"}, "REDIS_HOST"),
        ({"REDIS_HOST": "::1", "REDIS_PORT": "7000", "REDIS_DB": 3}, "REDIS_HOST"),
        ({"REDIS_PORT": 7000, "REDIS_PARAMS": {"db": 2, "password": "p@:/%"}}, "REDIS_PORT"),
        ({"REDIS_PARAMS": {"host": "a", "username": "u", "password": "?"}}, "REDIS_PARAMS"),
        (
            {"REDIS_HOST": "a", "REDIS_PARAMS": {"ssl": True, "ssl_cert_reqs": ssl.CERT_NONE}},
            "REDIS_HOST",
        ),
    ],
)
def test_the_server_is_that_of_scrapy_redis(given: dict[str, Any], place: str) -> None:
    settings = read(**given)
    ours = parse_url(settings.url or "")  # type: ignore[no-untyped-call]
    scrapy_redis = pytest.importorskip("scrapy_redis.connection")
    theirs = scrapy_redis.get_redis_from_settings(Settings(given)).connection_pool
    expected = theirs.connection_kwargs
    for name in ("host", "port", "username", "password", "db"):
        assert str(ours.get(name)) == str(expected.get(name)), name
    assert ours.get("connection_class", Connection) is theirs.connection_class
    assert settings.url_from == place


PORT = "tcp://10.0.0.1:6379"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"REDIS_HOST": ["a", "b"]}, "REDIS_HOST = ['a', 'b']: allowed is a host's"),
        ({"REDIS_HOST": "redis://a:1"}, "REDIS_HOST = 'redis://a:1': allowed is a host's"),
        ({"REDIS_HOST": "redis://:secret@a"}, "REDIS_HOST = <str, not shown>: allowed is "),
        ({"REDIS_HOST": "a", "REDIS_PORT": PORT}, f"REDIS_PORT = '{PORT}': allowed is a port's"),
        ({"REDIS_HOST": "a", "REDIS_DB": "one"}, "REDIS_DB = 'one': allowed is a database's"),
        ({"REDIS_HOST": "a", "REDIS_PARAMS": "{}"}, "REDIS_PARAMS = <str, not shown>: allowed is "),
        (
            {"REDIS_HOST": "a", "REDIS_PARAMS": {"port": PORT}},
            "REDIS_PARAMS = <dict, not shown>: allowed is a dict, and as its 'port' a port's ",
        ),
        (
            {"REDIS_HOST": "a", "REDIS_PARAMS": {"password": 1}},
            "REDIS_PARAMS = <dict, not shown>: allowed is a dict, and as its 'password' a text",
        ),
        ({"REDIS_PARAMS": {"db": 1}}, "REDIS_PARAMS is set, but no setting names a server. "),
        ({"REDIS_SENTINELS": ["a"]}, "REDIS_SENTINELS is set, but no setting names a server. "),
        *(
            ({name: "redis://a"}, f"{name} is set, but no setting names a server. Only crawls on ")
            for name in ("SEMAPHORE_REDIS_ULR", "SEMPHORE_REDIS_URL", "SEMAPHORE_REDIS_HOST")
        ),
    ],
)
def test_settings_that_name_no_server_are_a_warning(
    given: dict[str, Any], problem: str, caplog: Log
) -> None:
    settings = read(**given)
    assert (settings.url, settings.url_from) == (None, "")
    log_origin_of_server(Settings(given), settings.url_from)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(problem)


def test_the_embedded_server_can_be_chosen(monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    given = {"SEMAPHORE_REDIS_URL": "embedded", "REDIS_HOST": ["a", "b"]}
    settings = read(**given)
    assert FairSemaphore(settings.url).url is None
    log_origin_of_server(Settings(given), settings.url_from)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        (
            "SEMAPHORE_SCOPES",
            ["hosts", ["ip"], 1, [1], ["host", "registered_domain"], {}, ["host", ""], "math.tau"],
            "a list of any of 'host', 'domain', 'proxy', 'all', and of functions",
        ),
        ("SEMAPHORE_PREFIX", ["", 1, "a{1}", "}", "a\0"], "not empty, without '{' and '}'"),
        (
            "SEMAPHORE_NODE",
            ["a\n2026 ERROR: forged", "\0", 1.5, "n" * 201],
            "a text of at most 200 printable characters",
        ),
        (
            "SEMAPHORE_BACKOFF_CODES",
            ["x", "[4", [99], [1000], [None], 7.5],
            "list of HTTP statuses",
        ),
        ("SEMAPHORE_BACKOFF_MAX", [0.5, "x", NAN], "number >= 1"),
        (
            "SEMAPHORE_METRICS",
            [-1, "x", 70000, 1.5, True, [1], "a:", ":9410", "::1:9410", "a..example:1", "a:65536"],
            "an address and a port like '127.0.0.1:9410', a port of 127.0.0.1, or None",
        ),
        ("CONCURRENT_REQUESTS", [-1, "many", 1.5], "integer >= 0"),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", [0, 1.5, "1.5", "x", None], "integer >= 1"),
        ("DOWNLOAD_DELAY", [-1, "x", INF, True], "number >= 0"),
        ("DOWNLOAD_DELAY_JITTER", [-1, "x"], "number >= 0"),
        ("RANDOMIZE_DOWNLOAD_DELAY", ["much"], "True or False"),
        ("SEMAPHORE_LIMITS", ["x", "[1]", "2", [1], 7], "dict of hosts to limits"),
    ],
)
def test_errors_name_what_is_allowed(name: str, values: list[Any], allowed: str) -> None:
    for value in values:
        message = refused(**{name: value})
        assert message.startswith(f"{name} = {value!r}: allowed is ")
        assert allowed in message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SEMAPHORE_LIMITS", '{"a": "2"}', "['a'] = '2': allowed is "),
        ("SEMAPHORE_LIMITS", {"a\nb": 0}, "['a\\nb']: a name has no control characters"),
        ("SEMAPHORE_LIMITS", {"a\u2028b": 2}, "['a\\u2028b']: a name has no control characters"),
        ("SEMAPHORE_LIMITS", {".a.test": 2}, "['.a.test']: no request has this name; write '*.a"),
        ("SEMAPHORE_LIMITS", {"b.test/": 2}, "['b.test/']: give only the host: 'b.test'"),
        ("SEMAPHORE_LIMITS", {"ip:*": 2}, "['ip:*']: there is no limit of an address; limit hosts"),
        ("SEMAPHORE_LIMITS", {"ip:::1": 2}, "['ip:::1']: there is no limit of an address; limit"),
        ("SEMAPHORE_LEASE", "1\n2", " = '1\\n2': allowed is "),
        ("DOWNLOAD_SLOTS", '{"a": {"concurrency": 0}}', "['a']['concurrency'] = 0: allowed is "),
        ("DOWNLOAD_SLOTS", {"a": 2}, "['a'] = 2: allowed is "),
        ("SEMAPHORE_REDIS_URL", ["redis://:secret@a"], " = <list, not shown>: allowed is a text"),
        ("SEMAPHORE_SCOPES", "host,nowhere.at", ": 'nowhere.at' cannot be loaded: ModuleNotFound"),
        ("SEMAPHORE_SCOPES", ["nowhere.at"], ": 'nowhere.at' cannot be loaded: ModuleNotFound"),
    ],
)
def test_errors_name_the_key_in_one_line(name: str, value: object, said: str) -> None:
    message = refused(**{name: value})
    assert message.startswith(name + said)
    assert "\n" not in message
