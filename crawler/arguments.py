"""The arguments of the spider `site`, checked before anything is fetched."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from scrapy import Request

KNOWN = ("url", "urls", "allow", "deny", "max_pages", "depth")


@dataclass(frozen=True, slots=True)
class SiteArguments:
    """Start URLs, and the links to follow. `max_pages` and `depth`: 0 for no limit."""

    urls: tuple[str, ...]
    allow: str = ""
    deny: str = ""
    max_pages: int = 0
    depth: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SiteArguments:
        """Read `-a` arguments. A `ValueError` names the argument, its value and allowed values."""
        for name in given:
            if name not in KNOWN:
                raise ValueError(f"-a {name}: no such argument, allowed are {', '.join(KNOWN)}")
        return cls(
            urls=_start_urls(given),
            allow=_pattern(given, "allow"),
            deny=_pattern(given, "deny"),
            max_pages=_count(given, "max_pages"),
            depth=_count(given, "depth"),
        )

    @property
    def hosts(self) -> list[str]:
        """The hosts to stay on, with their subdomains; a leading `www.` is left out."""
        # As in the URLs of requests: in IDNA where they are not ASCII.
        hosts = (urlsplit(Request(url).url).hostname or "" for url in self.urls)
        return sorted({_without_www(host) for host in hosts})

    @property
    def crawl_name(self) -> str:
        """The crawl's name: the same on all nodes with the same arguments."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return f"{self.hosts[0]}-{digest[:8]}"


def _without_www(host: str) -> str:
    rest = host.removeprefix("www.")
    return rest if "." in rest else host  # www.com is a site, com is none


def _start_urls(given: Mapping[str, str]) -> tuple[str, ...]:
    urls = re.split(r"[\s,]+", given.get("url", ""))
    if "urls" in given:
        urls += _lines(given["urls"])
    urls = [url for url in urls if url]
    if not urls:
        raise ValueError("no start URL: give -a url=https://example.com or -a urls=FILE")
    for url in urls:
        _check_url(url)
    return tuple(dict.fromkeys(urls))


def _lines(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"-a urls={path}: cannot read this file: {reason}") from None
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if not line.startswith("#")]


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # such as a port that is not a number, or an open bracket
        complete = False
    if not complete:
        raise ValueError(f"url {url!r}: a start URL begins with http:// or https:// and a host")


def _pattern(given: Mapping[str, str], name: str) -> str:
    pattern = given.get(name, "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"-a {name}={pattern}: not a regular expression: {error}") from None
    return pattern


def _count(given: Mapping[str, str], name: str) -> int:
    """A whole number; 0, like leaving the argument out, means no limit."""
    value = given.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise ValueError(f"-a {name}={value}: a whole number from 0 is allowed, 0 for no limit")
    return int(value)
