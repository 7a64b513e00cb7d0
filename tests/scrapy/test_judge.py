"""A user's own judge of responses: what it may return, and what becomes of one that fails."""

from __future__ import annotations

import gzip
import logging
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse, Response
from scrapy.utils.test import get_crawler

from semaphore_middleware.scrapy.judge import Judge
from tests.support.visits import Visits

REQUEST = Request("http://a/")
CAPTCHA = "<title>Are you a robot?</title>"


def is_captcha(response: Response) -> bool:
    """As a user would write it."""
    return "robot" in response.text


def judge(function: Any, **settings: Any) -> Judge:
    return Judge(function, get_crawler(Visits, settings))


@pytest.mark.parametrize(
    ("verdict", "seconds"),
    [
        (True, 0),
        (False, None),
        (None, None),
        (0, None),
        (30, 30),
        (0.5, 0.5),
        (float("inf"), 1e9),
        (10**400, 1e9),
    ],
)
def test_verdicts(verdict: object, seconds: float | None) -> None:
    assert judge(lambda _: verdict).refusal(REQUEST, Response("http://a/")) == seconds


@pytest.mark.parametrize(
    ("verdict", "shown"), [("yes", "str"), (float("nan"), "nan"), (-1, "int"), ([], "list")]
)
def test_nonsense_is_logged_and_changes_nothing(
    verdict: object, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert judge(lambda _: verdict).refusal(REQUEST, Response("http://a/")) is None
    (message,) = caplog.messages
    assert message == (
        f"SEMAPHORE_BACKOFF_WHEN returned {shown} for <200 http://a/>: allowed is True, False or a "
        "number of seconds >= 0."
    )


def test_a_judge_that_raises_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = Response("http://a/", headers={"Content-Type": "image/png"})
    assert judge(is_captcha).refusal(REQUEST, image) is None
    ((_, level, message),) = caplog.record_tuples
    assert level == logging.ERROR
    assert message.startswith("SEMAPHORE_BACKOFF_WHEN raised AttributeError(")
    assert message.endswith("for <200 http://a/>.")


@pytest.mark.parametrize(("is_on", "seconds"), [(True, 0), (False, None)])
def test_it_sees_the_response_as_spiders_do(is_on: bool, seconds: float | None) -> None:
    response = HtmlResponse(
        "http://a/",
        headers={"Content-Encoding": "gzip", "Content-Type": "text/html"},
        body=gzip.compress(CAPTCHA.encode()),
    )
    seen = judge(is_captcha, COMPRESSION_ENABLED=is_on)
    assert seen.refusal(REQUEST, response) == seconds
    assert response.headers["Content-Encoding"] == b"gzip", "it is left to Scrapy's middleware"
    crawler_stats = seen._crawler.stats
    assert crawler_stats is not None
    assert crawler_stats.get_stats() == {}, "Scrapy's own middleware counts it"


def test_a_body_that_cannot_be_read_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bomb = gzip.compress(bytes(10**6))
    response = Response("http://a/", headers={"Content-Encoding": "gzip"}, body=bomb)
    assert judge(is_captcha, DOWNLOAD_MAXSIZE=1000).refusal(REQUEST, response) is None
    assert "SEMAPHORE_BACKOFF_WHEN raised IgnoreRequest(" in caplog.text
