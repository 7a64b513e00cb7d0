"""The files of a node's feeds: no two nodes may write to one of them."""

from __future__ import annotations

import logging
import os
from stat import S_ISREG
from typing import IO
from urllib.parse import urlsplit
from weakref import WeakSet

from scrapy.settings import BaseSettings

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.shared_crawl.engine import CrawlEngine

try:
    import fcntl
except ImportError:  # on Windows, where no feed is locked
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


class FeedUnwritableError(ServerUnreachableError):
    """A feed's file cannot be written just now, so its items' pages cannot be finished."""


class Feeds:
    """Writes a node's items to its feeds' files, and warns if other nodes would lose items."""

    def __init__(self, engine: CrawlEngine, settings: BaseSettings) -> None:
        self._engine = engine
        self._locked: WeakSet[IO[bytes]] = WeakSet()
        for feed, options in settings.getdict("FEEDS").items():
            scheme = urlsplit(uri := str(feed)).scheme
            overwrites = options.get("overwrite", scheme not in ("", "file"))
            if overwrites and scheme != "stdout" and "%(" not in uri:
                logger.warning(
                    "FEEDS: each node overwrites %s, even when it is restarted: the items in it "
                    "are lost. Append to a file ('overwrite': False, -o); or give each start a "
                    "feed of its own, as with '%%(time)s' in its URI",
                    uri,
                )

    def flush(self) -> None:
        """Write all items so far to the files, so that they outlive this process.

        Raises `FeedUnwritableError`.
        """
        for file in self._engine.feed_files():
            try:
                file.flush()
            except OSError as error:
                raise FeedUnwritableError(
                    f"Cannot write to the feed's file {_name_of(file)}: {error.strerror}"
                ) from error
            if file not in self._locked:
                self._locked.add(file)
                self._lock(file)

    def _lock(self, file: IO[bytes]) -> None:
        """Warn if another process has the same file."""
        try:
            if fcntl is not None and S_ISREG(os.fstat(file.fileno()).st_mode):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning(
                "Another process writes to the file of a feed, too (%s): give each node a file of "
                "its own",
                _name_of(file),
            )
        except OSError:
            pass  # not a real file, such as a compressed one, or a file system without locks


def _name_of(file: IO[bytes]) -> str:
    return str(getattr(file, "name", "without a name"))
