"""From Scrapy's settings to the server, for as long as a command runs.

A crawl waits for its server; who types a command wants to hear at once that it is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.location import URL_NAMES
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

PATIENCE = 30.0  # seconds, for what takes milliseconds; with 50,000 sites in use, some of them
T = TypeVar("T")


class Status(IntEnum):
    """What a command's exit status says."""

    DONE = 0
    DECLINED = 1
    """Asked whether to go on, the user did not say yes; nothing was changed."""
    WRONG = 2
    """A value or an option is not allowed."""
    NO_SERVER = 3
    """The server cannot be reached, refuses, or has no address."""
    UNKNOWN = 4
    """The server knows nothing of this scope or node."""


class CommandError(Exception):
    """One clear line for the user, and the exit status."""

    def __init__(self, text: str, status: Status) -> None:
        super().__init__(text)
        self.status = status


def open_semaphore(settings: BaseSettings) -> Admin:
    """What operators see and set of crawls with these settings.

    Starts no embedded server. Raises `SettingsError`, and `CommandError` if there is no server.
    """
    ours = SemaphoreSettings.read(settings)
    url, url_from = ours.url or embedded.find(), ours.url_from
    if url is None:
        raise CommandError(
            f"no server's address is given ({' or '.join(URL_NAMES)}, in the settings, by -s, "
            "or in the environment), and no embedded server runs",
            Status.NO_SERVER,
        )
    return Admin(
        url,
        name=settings.get("SEMAPHORE_NODE"),
        lease=ours.lease,
        prefix=ours.prefix,
        url_from=url_from,
    )


def check_rich() -> None:
    """Say what to do where what draws is missing; only commands need it, and not all of them."""
    try:
        import rich  # noqa: F401
    except ImportError:
        raise CommandError(
            "this needs rich: pip install 'scrapy-semaphore[commands]' (status --json does not)",
            Status.WRONG,
        ) from None


@asynccontextmanager
async def session(settings: BaseSettings) -> AsyncIterator[Admin]:
    """The operator's actions on the server of these settings."""
    async with open_semaphore(settings) as admin:
        yield admin


async def answered(semaphore: Admin, answer: Awaitable[T]) -> T:
    """The server's answer. Raises `ServerUnreachableError` if that does not come soon."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await answer
    except TimeoutError:
        raise ServerUnreachableError(f"lost {semaphore.server}: no answer") from None
