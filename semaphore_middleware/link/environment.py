"""Defaults from a process's surroundings: the server's URL and the node's name.

Imports no redis-py, so that settings can be read without it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

URL_NAMES = ("SEMAPHORE_REDIS_URL", "REDIS_URL")  # in the settings, then in the environment


def url_from_environment() -> tuple[str | None, str]:
    """The URL in the environment, and where it was set; None means the embedded server."""
    for name in URL_NAMES:
        if os.environ.get(name):
            return os.environ[name], f"{name} in the environment"
    return None, "the environment"


def server_of(settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The server's URL, and where it was set: in the settings, else in the environment. What the
    add-on has copied from there was set there.
    """
    in_environment = url_from_environment()
    for name in URL_NAMES:
        if url := settings.get(name):
            return in_environment if url == in_environment[0] else (str(url), name)
    return in_environment


def machine() -> int:
    """A number of this machine, the same in all of its containers. It may be another one's, too,
    but hardly ever is.
    """
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:  # not Linux
        name = socket.gethostname().encode()
    return crc32(name)


def default_node(spider: str = "", job: str = "") -> str:
    """The default name of a node: host and process id. That of a crawl begins with
    the spider, and has Scrapyd's name of the job in their place, if there is one.
    """
    process = f"{socket.gethostname()}-{os.getpid()}"
    return f"{spider}-{job or os.environ.get('SCRAPY_JOB') or process}" if spider else process
