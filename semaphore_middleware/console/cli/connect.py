"""What commands have in common: the server of Scrapy's settings, a question, an exit status."""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.environment import URL_NAMES
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class Status(IntEnum):
    """A command's exit status."""

    DONE = 0
    DECLINED = 1
    """Asked whether to go on, the user did not say yes; nothing was changed."""
    WRONG = 2
    """A value or an option is not allowed, or a library is missing."""
    NO_SERVER = 3
    """The server cannot be reached, refuses, or has no address."""
    UNKNOWN = 4
    """The server knows nothing of this scope or node."""


class CommandError(Exception):
    """One clear line for the user, and the exit status."""

    def __init__(self, text: str, status: Status) -> None:
        super().__init__(text)
        self.status = status


def admin_of(settings: BaseSettings) -> Admin:
    """What speaks to the server of crawls with these settings; not connected yet.

    Starts no embedded server. Raises `SettingsError`, and `CommandError` if there is no server.
    """
    ours = SemaphoreSettings.read(settings)
    url, url_from = address_of(ours)
    return Admin(
        url,
        name=settings.get("SEMAPHORE_NODE"),
        lease=ours.lease,
        prefix=ours.prefix,
        url_from=url_from,
    )


def address_of(ours: SemaphoreSettings) -> tuple[str, str]:
    """The URL of the server, and where it was set. Raises `CommandError` if there is none."""
    if (url := ours.url or embedded.find()) is None:
        names = " or ".join(URL_NAMES)
        raise CommandError(
            f"no server's address is given ({names}, in the settings, by -s, or in the "
            "environment), and no embedded server runs",
            Status.NO_SERVER,
        )
    return url, ours.url_from


def confirmed(question: str) -> bool:
    """Ask, and return whether the answer is yes."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def check_installed(library: str, hint: str = "") -> None:
    """Raise `CommandError`, with the command to install it, if the library is missing."""
    try:
        import_module(library)
    except ImportError:
        raise CommandError(
            f"this needs {library}: pip install 'scrapy-semaphore[commands]'{hint}", Status.WRONG
        ) from None
