"""A line that the user must see, wherever logging goes."""

import logging
from collections.abc import Iterator
from logging.handlers import QueueHandler
from queue import Queue
from unittest.mock import Mock

import pytest
from scrapy.utils.log import LogCounterHandler

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link import stderr
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """One that stands alone."""
    logger = logging.getLogger(f"{__name__}.alone")
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


def showing(level: int = logging.NOTSET) -> logging.Handler:
    handler = QueueHandler(Queue())
    handler.setLevel(level)
    return handler


@pytest.mark.parametrize(
    ("handlers", "level", "is_written"),
    [
        # With LOG_ENABLED = False:
        ([logging.NullHandler(), LogCounterHandler(Mock())], logging.NOTSET, True),
        ([showing(logging.CRITICAL)], logging.NOTSET, True),
        ([showing()], logging.CRITICAL, True),
        ([logging.NullHandler(), showing()], logging.NOTSET, False),
        ([], logging.NOTSET, True),  # by Python itself
    ],
)
def test_it_is_written_where_no_handler_shows_errors(
    logger: logging.Logger,
    handlers: list[logging.Handler],
    level: int,
    is_written: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger.handlers = handlers
    logger.setLevel(level)
    stderr.log(logger, logging.WARNING, "%s: %d", "a", 1)
    assert capsys.readouterr().err == "a: 1\n" * is_written


async def test_a_server_that_is_away_is_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("semaphore_middleware.link.link.logger.disabled", True)
    link = Link(Server("redis://localhost", 1.0), lambda: "All requests wait")
    await link.failed(ServerUnreachableError("cannot reach it"))
    assert capsys.readouterr().err == "cannot reach it. All requests wait.\n"
