"""Defaults from a process's environment and machine: the server's URL and the node's name.

Imports no redis-py, so that settings can be read without it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

logger = logging.getLogger(__name__)

URL_NAMES = ("SEMAPHORE_REDIS_URL", "REDIS_URL")  # in the settings, then in the environment
EMBEDDED = "embedded"
"""In place of a URL: use the embedded server, whatever else is set."""
SCRAPY_REDIS = ("REDIS_HOST", "REDIS_PORT", "REDIS_PARAMS")
"""Settings of scrapy-redis that can name a server."""
LONGEST_NODE = 200
"""Characters of a node's name: each call sends it, and the server keeps it in each site's data."""
HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+", re.IGNORECASE)


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and HOST.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    try:
        return int(value) >= 0
    except (TypeError, ValueError, OverflowError):
        return False


PARTS_OF_ADDRESS = {
    "REDIS_HOST": ("host", _is_host, "a host's name or address, without a port"),
    "REDIS_PORT": ("port", _is_number, "a port's number"),
    "REDIS_DB": ("db", _is_number, "a database's number"),
}
"""Settings of scrapy-redis, with their names in REDIS_PARAMS, checks, and what is allowed."""

FLEETS = {"SCRAPY_JOB": "Scrapyd", "KUBERNETES_SERVICE_HOST": "Kubernetes"}
"""Systems that run processes on several machines, by a variable that each sets there."""
MARKS_OF_CONTAINERS: Sequence[Path] = (Path("/.dockerenv"), Path("/run/.containerenv"))


def url_from_environment() -> tuple[str | None, str]:
    """The URL in the environment, and where it was set. None means the embedded server; the place
    is empty unless that was chosen.
    """
    for name in URL_NAMES:
        if url := os.environ.get(name):
            return _read(url), f"{name} in the environment"
    return None, ""


def server_of(settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The URL and where it was set: in the settings, otherwise in the environment, otherwise in
    scrapy-redis' settings. A URL that the add-on has copied from the environment counts as set
    there.
    """
    in_environment = url_from_environment()
    for name in URL_NAMES:
        if url := settings.get(name):
            return in_environment if url == in_environment[0] else (_read(str(url)), name)
    return in_environment if in_environment[1] else _server_of_scrapy_redis(settings)


def _read(url: str) -> str | None:
    return None if url == EMBEDDED else url


def _server_of_scrapy_redis(settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The server in scrapy-redis' settings, if their values are valid there. Variables of these
    names do not count: Kubernetes sets REDIS_PORT to `tcp://...` in the environment.
    """
    where = next((name for name in SCRAPY_REDIS if settings.get(name)), "")
    if unusable_of_scrapy_redis(settings) is not None:
        return None, ""
    named = {
        option: settings[name]
        for name, (option, _, _) in PARTS_OF_ADDRESS.items()
        if settings.get(name)
    }
    given = {**(settings.get("REDIS_PARAMS") or {}), **named}
    if not given.keys() & {"host", "port"}:
        return None, ""
    host, port = given.get("host") or "localhost", int(given.get("port") or 6379)
    user, password = [quote(given.get(name) or "", "") for name in ("username", "password")]
    address = f"{user}:{password}@{quote(host)}:{port}/{int(given.get('db') or 0)}"
    if not given.get("ssl"):
        return f"redis://{address}", where
    of_tls = {name: text_of(value) for name, value in given.items() if name.startswith("ssl_")}
    return f"rediss://{address}?{urlencode(of_tls)}", where


def unusable_of_scrapy_redis(settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of scrapy-redis' settings whose value cannot be used, and what is allowed there."""
    params = settings.get("REDIS_PARAMS") or {}
    if not isinstance(params, Mapping):
        return "REDIS_PARAMS", "a dict"
    for name, (option, is_usable, allowed) in PARTS_OF_ADDRESS.items():
        if value := settings.get(name):
            if not is_usable(value):
                return name, allowed
        elif (value := params.get(option)) and not is_usable(value):
            return "REDIS_PARAMS", f"a dict, and as its {option!r} {allowed}"
    for option in ("username", "password"):
        if not isinstance(params.get(option) or "", (str, bytes)):
            return "REDIS_PARAMS", f"a dict, and as its {option!r} a text"
    return None


def text_of(option: Any) -> str:
    """The value of a TLS option as text; of an enumeration, such as `ssl.CERT_NONE`, the name."""
    return str(getattr(option, "name", option))


def misspelt_url(names: Iterable[str]) -> list[str]:
    """Those of the names that were probably meant to be `SEMAPHORE_REDIS_URL`."""
    others = [name for name in names if name not in URL_NAMES]
    return [name for name in others if get_close_matches(name, URL_NAMES[:1], cutoff=0.8)]


def warn_of_others(server: str, is_chosen: bool) -> None:
    """Warn if anything hints at nodes on other machines, which cannot use this server. `is_chosen`:
    its URL was set, so a variable with a similar name is not a misspelt one.
    """
    misspelt = [] if is_chosen else misspelt_url(sorted(os.environ))
    signs = [f"{name} in the environment" for name in misspelt]
    signs += [system for name, system in FLEETS.items() if os.environ.get(name)]
    if signs or any(mark.exists() for mark in MARKS_OF_CONTAINERS):
        logger.warning(
            "Only nodes on this machine share limits at %s, but %s hints at other machines, whose "
            "nodes would have limits of their own. Set SEMAPHORE_REDIS_URL to the address of a "
            "server that all nodes reach, or to 'embedded' if all run on this machine.",
            server,
            signs[0] if signs else "a container",
        )


def machine() -> int:
    """A number for this machine, the same in all of its containers, and rarely another one's."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:  # not Linux
        name = socket.gethostname().encode()
    return crc32(name)


def default_node(spider: str = "", job: str = "") -> str:
    """The default name of a node: host and process id. A crawl's name begins with its spider, and
    has the job's id instead of both if Scrapyd gives one.
    """
    process = f"{socket.gethostname()}-{os.getpid()}"
    name = f"{spider}-{job or os.environ.get('SCRAPY_JOB') or process}" if spider else process
    return name[:LONGEST_NODE]
