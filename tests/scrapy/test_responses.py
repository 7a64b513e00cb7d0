"""What a response says of its site, what becomes of a refused request, and a user's own refusal
check.
"""

import asyncio
import errno
import gzip
import logging
import math
import socket
import time
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.utils.response import response_status_message
from twisted.internet.error import ConnectBindError, NoRouteError

from semaphore_middleware import Permit
from semaphore_middleware.core.cache import Cache
from semaphore_middleware.core.permit import PermitSet
from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.model.limits import Limit, parse_limits
from semaphore_middleware.scrapy.admission import Admission, Admissions
from semaphore_middleware.scrapy.download_errors import is_without_response
from semaphore_middleware.scrapy.refused_proxies import RefusedProxies
from semaphore_middleware.scrapy.responses import (
    RefusalCheck,
    ResponseClassifier,
)
from semaphore_middleware.scrapy.retries import (
    REFUSALS_KEY,
    REFUSED_AT_KEY,
    Retries,
    forget_refusals,
)
from semaphore_middleware.scrapy.scopes import ScopeFinder
from semaphore_middleware.scrapy.versions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
)
from tests.scrapy.test_doors import SMALL, VALUES
from tests.support.crawls import Log, ready_crawler
from tests.support.visits import Visits

ADMISSIONS: WeakKeyDictionary[Request, Admission] = WeakKeyDictionary()
LIMITS = parse_limits({}, {}, Limit(2))
ALL = Admissions(ScopeFinder(("host",), LIMITS), 16, lambda: None)


class FakePermit:
    """Keeps what it is told of its request."""

    scope = "a"

    def __init__(self) -> None:
        self.granted_at = asyncio.get_running_loop().time()
        self.site_answered_at = -math.inf
        self.no_retry = ""
        self.refuses_pages = False
        self.told: list[Any] = []
        self.teaches: tuple[bool, float] | None = None

    def refused(
        self, retry_after: float, what: str, status: int, is_metered: bool, quota_interval: float
    ) -> None:
        # all is allowed
        Feedback(None, True, False, retry_after, status, is_metered, quota_interval)
        assert " to GET /" in what
        assert "(try " in what or not what.endswith(")")
        self.told.append(("refused", retry_after))
        self.teaches = is_metered, quota_interval

    def answered(self, latency: float | None, retry_after: float = 0.0) -> None:
        self.told.append(("answered", latency, retry_after))

    def failed(self) -> None:
        self.told.append("failed")


def permits_of(permit: FakePermit) -> PermitSet:
    return PermitSet([cast("Permit", permit)])


def classifier(
    times: int = 2, check: RefusalCheck | None = None, codes: tuple[int, ...] = (429, 503)
) -> ResponseClassifier:
    crawler = ready_crawler(Visits)
    crawler.crawling = True
    proxies = RefusedProxies(lambda: cast("Cache", None))
    statuses: frozenset[int] = frozenset() if check else frozenset(codes)
    return ResponseClassifier(statuses, check, Retries(crawler, times), proxies)


def admission_of(request: Request) -> Admission:
    """The same one for each of its responses."""
    if request not in ADMISSIONS:
        ADMISSIONS[request] = Admission(request, True)
    return ADMISSIONS[request]


async def recorded(
    status: int,
    request: Request,
    seen: ResponseClassifier | None = None,
    answered_ago: float = math.inf,
    no_retry: str = "",
    refuses_pages: bool = False,
    **headers: Any,
) -> Any:
    """What the permit is told of a response. The site answered a request well that began so many
    seconds ago.
    """
    permit = FakePermit()
    permit.site_answered_at = permit.granted_at - answered_ago
    permit.no_retry, permit.refuses_pages = no_retry, refuses_pages
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = Response("http://a/", status=status, headers=names)
    record = (seen or classifier()).record_response
    is_refused = await record(permits_of(permit), admission_of(request), response)
    assert is_refused == (status in (429, 503))
    return permit.told


def refused_before(seconds: float) -> Request:
    """A request that its site has refused so long ago."""
    meta = {REFUSALS_KEY: 1, REFUSED_AT_KEY: time.time() - seconds}
    return Request("http://a/", meta=meta)


def retried(
    seen: ResponseClassifier, request: Request, status: int = 429, **settings: Any
) -> Request | None:
    """What is made of a request that was refused, or answered, with this status."""
    crawler = seen._retries._crawler = ready_crawler(Visits, **settings)
    crawler.spider, crawler.crawling = Visits.from_crawler(crawler), True
    return seen._retries.make(admission_of(request), response_status_message(status))


MEASURED = {"download_latency": 0.25}
LEFT, NONE_LEFT = {"RateLimit": '"a";r=1;t=8'}, {"RateLimit": '"a";r=0;t=8'}
TOLD: list[tuple[int, dict[str, Any], dict[str, str], tuple[Any, ...]]] = [
    (429, {}, {}, ("refused", 0)),
    (429, {}, {"Retry_After": "7"}, ("refused", 7)),
    (429, {}, NONE_LEFT, ("refused", 8)),
    (429, {}, {"Retry_After": "7", **NONE_LEFT}, ("refused", 7)),
    (200, MEASURED, {}, ("answered", 0.25, 0)),
    (404, MEASURED, {}, ("answered", 0.25, 0)),
    (200, MEASURED, {"Retry_After": "5"}, ("answered", 0.25, 0)),  # no refusal
    (200, MEASURED, LEFT, ("answered", 0.25, 0)),
    (200, MEASURED, NONE_LEFT, ("answered", 0.25, 8)),
    (200, MEASURED, {"Retry_After": "5", **NONE_LEFT}, ("answered", 0.25, 5)),
    (500, MEASURED, {}, ("answered", None, 0)),  # it is there, and no more is known
    (500, MEASURED, NONE_LEFT, ("answered", None, 8)),
    # Times that are not credible stop nobody.
    (
        200,
        MEASURED,
        {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "9" * 9},
        ("answered", 0.25, 0),
    ),
    (429, {}, {"Retry_After": "9" * 9}, ("refused", 0)),
]


@pytest.mark.parametrize(("status", "meta", "headers", "told"), TOLD)
async def test_what_is_told_of_a_response(
    status: int, meta: dict[str, Any], headers: dict[str, Any], told: tuple[Any, ...]
) -> None:
    assert await recorded(status, Request("http://a/", meta=dict(meta)), **headers) == [told]


async def test_what_is_ignored_is_said_once_a_host(caplog: Log) -> None:
    seen, soon = classifier(), {"Retry_After": "soon"}
    for url in ("http://a/1", "http://a/2", "http://b/"):
        await recorded(429, Request(url), seen, **cast("Any", soon))
    await recorded(200, Request("http://c/"), seen, **cast("Any", soon))  # it is not read there
    hosts = [line.partition(" ")[0] for line in caplog.messages if "'Retry-After: soon'" in line]
    assert hosts == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "headers", "teaches"),
    [
        (429, {}, (True, 0)),
        (503, {}, (False, 0)),
        (503, {"Retry-After": "3"}, (True, 0)),
        (429, {"RateLimit-Policy": '"a";q=10;w=5'}, (True, 0.5)),
        # As the user lists them:
        *((status, {}, (True, 0)) for status in (202, 302, 403, 420, 430, 509, 999)),
        *((status, {}, (False, 0)) for status in (500, 520, 529)),
    ],
)
async def test_refusals_that_teach_an_interval(
    status: int, headers: dict[str, str], teaches: tuple[bool, float]
) -> None:
    permit = FakePermit()
    response = Response("http://a/", status=status, headers=headers)
    request = Request("http://a/")
    seen = classifier(codes=(status,))
    await seen.record_response(permits_of(permit), admission_of(request), response)
    assert permit.teaches == teaches


@pytest.mark.parametrize("status", [-5, 0, 1000, 10**9])
async def test_a_status_may_be_any_number(status: int) -> None:
    seen, permit, request = (
        classifier(2, refusal_check(lambda _: 10**30)),
        FakePermit(),
        Request("http://a/"),
    )
    response = Response("http://a/", status=status)
    await seen.record_response(permits_of(permit), admission_of(request), response)
    assert permit.told == [("refused", 1e9)]


async def test_a_robots_txt_says_only_that_the_site_is_there() -> None:
    request = Request("http://a/robots.txt", meta=dict(MEASURED))
    assert await recorded(200, request) == [("answered", None, 0)]


async def test_what_has_tried_a_site_that_is_shut_is_not_retried() -> None:
    seen, request = classifier(), Request("http://a/")
    await recorded(429, request, seen, no_retry="its site refuses all")
    assert retried(seen, request) is None


@pytest.mark.parametrize("given", [None, math.nan, -1, math.inf, "soon", b"1", 10**400, [1]])
async def test_a_latency_that_is_not_measured_is_the_time_since_the_grant(given: object) -> None:
    request = Request("http://a/", meta={"download_latency": given})
    ((kind, latency, _),) = await recorded(200, request)
    assert kind == "answered"
    assert 0 <= latency < 60


@pytest.mark.parametrize("refuses_pages", [True, False])
@pytest.mark.parametrize(
    ("status", "headers", "refused_ago", "answered_ago", "is_of_site"),
    [
        (503, {}, None, 1, True),  # the first time: nobody knows
        (503, {}, 5, 9, True),  # others were answered before it was refused, and not since
        (503, {}, 5, 1, False),
        (503, {"Retry_After": "1"}, 5, 1, True),
        (503, {"RateLimit": '"a";r=0;t=1'}, 5, 1, True),
        (429, {}, 5, 1, False),
        (503, {}, -3600, 1, True),  # by another node, with another clock
    ],
)
async def test_a_second_refusal_is_of_the_page_where_the_site_refuses_pages(
    status: int,
    headers: dict[str, str],
    refused_ago: float | None,
    answered_ago: float,
    is_of_site: bool,
    refuses_pages: bool,
) -> None:
    request = Request("http://a/") if refused_ago is None else refused_before(refused_ago)
    seen = classifier()
    told = await recorded(
        status, request, seen, answered_ago, "", refuses_pages, **cast("Any", headers)
    )
    assert (told[0][0] == "refused") == (is_of_site or not refuses_pages)
    again = retried(seen, request, status)
    assert again is not None
    assert again.meta[REFUSALS_KEY] == (1 if refused_ago is None else 2)
    if refuses_pages and not is_of_site:
        assert told == [("answered", None, 0)], "the site is there, and no more is known"
        assert again.meta[REFUSED_AT_KEY] == request.meta[REFUSED_AT_KEY]


@pytest.mark.parametrize(
    "value", ["yesterday", *(one for one in VALUES if one is not SMALL)], ids=type
)
async def test_what_a_user_leaves_in_the_meta_harms_nothing(value: Any) -> None:
    request = Request("http://a/", meta={REFUSALS_KEY: value, REFUSED_AT_KEY: value})
    seen = classifier()
    assert await recorded(503, request, seen, answered_ago=1) == [("refused", 0)]
    assert retried(seen, request, 503) is not None


FAILURES = [
    *(DownloadTimeoutError(), DownloadConnectionRefusedError()),
    *(CannotResolveHostError(), TimeoutError()),
    *(ConnectionRefusedError(), socket.gaierror()),
    NoRouteError(),  # type: ignore[no-untyped-call]
    OSError(errno.EHOSTUNREACH, "no route to host"),
]
OTHERS = [
    ConnectBindError(),  # type: ignore[no-untyped-call] # this machine's own trouble
    OSError(errno.EMFILE, "too many open files"),
    *(PermitLostError(), IgnoreRequest(), ValueError()),
]


def test_only_a_site_that_does_not_respond_is_a_failure() -> None:
    for error in (*FAILURES, *OTHERS):
        assert is_without_response(error) == (error in FAILURES), repr(error)


async def test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter() -> None:
    seen, request = classifier(times=2), Request("http://a/", meta={"retry_times": 1})
    refused_at = []
    for refusals in (1, 2):
        await recorded(429, request, seen)
        again = retried(seen, request)
        assert again is not None
        assert again is not request
        assert again.dont_filter
        assert (again.meta[REFUSALS_KEY], again.meta["retry_times"]) == (refusals, 1)
        refused_at.append(again.meta[REFUSED_AT_KEY])
        request = again
    assert refused_at[0] == refused_at[1], "when it was refused first"
    await recorded(429, request, seen)
    assert retried(seen, request) is None
    assert request.meta["dont_retry"], "Scrapy's middleware must not begin anew"


class BadCodes:
    """What a project may take for a list of statuses."""

    def __contains__(self, code: object) -> bool:
        raise TypeError(code)


async def test_a_list_of_statuses_that_is_none_hides_no_refusal() -> None:
    request = Request("http://a/", meta={"handle_httpstatus_list": BadCodes()})
    permit = FakePermit()
    with pytest.raises(TypeError):
        response = Response("http://a/", status=503)
        await classifier().record_response(permits_of(permit), admission_of(request), response)
    assert permit.told == [("refused", 0)]


async def test_a_retry_is_asked_for_after_others_and_leaves_the_cache() -> None:
    kept = {"cached_response": Response("http://a/"), "mine": 1}
    seen, request = classifier(), Request("http://a/", meta=kept)
    await recorded(429, request, seen)
    again = retried(seen, request, RETRY_PRIORITY_ADJUST=-7)
    assert again is not None
    assert again.priority == -7
    assert again.meta.keys() == {"mine", REFUSALS_KEY, REFUSED_AT_KEY}


async def test_what_is_made_of_a_request_that_was_served_or_given_up_starts_afresh() -> None:
    seen, served = classifier(), refused_before(5)
    await recorded(200, served, seen)
    assert retried(seen, served, 200) is None
    assert served.meta == {}
    seen, given_up = classifier(times=0), Request("http://a/", meta={"mine": 1})
    await recorded(429, given_up, seen)
    assert retried(seen, given_up) is None
    given_up.meta.update({REFUSALS_KEY: 3, REFUSED_AT_KEY: 4.0})
    by_middleware = given_up.replace(url="http://a/other")
    for request in (by_middleware, given_up):
        forget_refusals(request)
    assert given_up.meta == by_middleware.meta == {"mine": 1}
    users = Request("http://a/", meta={"dont_retry": True})
    await recorded(429, users, seen)
    assert retried(seen, users) is None
    forget_refusals(users)
    assert users.meta == {"dont_retry": True}, "it is the user's"
    assert retried(seen, Request("http://a/")) is None, "its response came from a cache"


def is_captcha(response: Response) -> bool:
    """As a user would write it."""
    return "robot" in response.text


def refusal_check(function: Any, **settings: Any) -> RefusalCheck:
    return RefusalCheck(function, ready_crawler(Visits, **settings))


@pytest.mark.parametrize(
    ("verdict", "seconds"),
    [
        *((True, 0), (False, None), (None, None), (0, None), (30, 30), (0.5, 0.5)),
        *((float("inf"), 1e9), (10**400, 1e9)),
    ],
)
async def test_the_verdict_of_a_user_s_function(verdict: Any, seconds: float | None) -> None:
    seen = classifier(2, refusal_check(lambda _: verdict))
    request = Request("http://a/", meta={"download_latency": 0.25})
    permit = FakePermit()
    admission = admission_of(request)
    is_refused = await seen.record_response(permits_of(permit), admission, Response("http://a/"))
    assert is_refused == (seconds is not None)
    assert permit.told == [("refused", seconds) if is_refused else ("answered", 0.25, 0)]
    assert (retried(seen, request, 200) is not None) == is_refused


def raises(_: Response) -> None:
    raise AttributeError


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("yes", "returned str for <200 http://a/>: allowed is True, False or a number of seconds"),
        (float("nan"), "returned nan for"),
        (-1, "returned -1 for"),
        (raises, "raised AttributeError()"),
        (is_captcha, "raised IgnoreRequest("),  # the body is too large to be decompressed
    ],
)
def test_a_user_s_function_that_fails_changes_nothing(verdict: Any, said: str, caplog: Log) -> None:
    bomb = gzip.compress(bytes(10**6))
    response = Response("http://a/", headers={"Content-Encoding": "gzip"}, body=bomb)
    given = verdict if callable(verdict) else lambda _: verdict
    size = 1000 if verdict is is_captcha else 10**7
    assert (
        refusal_check(given, DOWNLOAD_MAXSIZE=size).refusal(Request("http://a/"), response) is None
    )
    *_, (_, level, message) = caplog.record_tuples
    assert message.startswith(f"SEMAPHORE_BACKOFF_WHEN {said}")
    assert "<200 http://a/>" in message
    assert level >= logging.WARNING


@pytest.mark.parametrize(("is_on", "seconds"), [(True, 0), (False, None)])
def test_it_sees_the_response_as_spiders_do(is_on: bool, seconds: float | None) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/html"}
    body = gzip.compress(b"<title>Are you a robot?</title>")
    response = HtmlResponse("http://a/", headers=headers, body=body)
    seen = refusal_check(is_captcha, COMPRESSION_ENABLED=is_on)
    assert seen.refusal(Request("http://a/"), response) == seconds
    assert response.headers["Content-Encoding"] == b"gzip", "it is left to Scrapy's middleware"
    crawler_stats = seen._crawler.stats
    assert crawler_stats is not None
    assert crawler_stats.get_stats() == {}, "Scrapy's own middleware counts it"
