"""`scrapy semaphore check`: whether a crawl could start, and the limits of a URL.

It makes the checks of a crawl's start and shows their warnings, but joins and changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.robotstxt import ProtegoRobotParser
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import add_http_if_no_scheme

from semaphore_middleware.core.calls import Recovery, Store
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.session import open_checked
from semaphore_middleware.errors import SemaphoreError, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import embedded
from semaphore_middleware.link.environment import EMBEDDED, default_node, machine, warn_of_others
from semaphore_middleware.link.lease import call_timeout
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server
from semaphore_middleware.model.hosts import clean, patterns_for
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import BY_NAME, PARTS, Limit, strictest
from semaphore_middleware.model.options import prefix_named
from semaphore_middleware.model.rules import Rule
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.formatting import delay_word, names_of, short_name
from semaphore_middleware.operators.verbs import CommandError, Status, admin_of
from semaphore_middleware.scrapy.crawl_delays import CrawlDelays
from semaphore_middleware.scrapy.scopes import ScopeFinder, Scopes, host_of, origin_of
from semaphore_middleware.scrapy.settings import (
    SemaphoreSettings,
    check_components,
    log_origin_of_server,
    warn_of_mistakes,
)

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

SERVER_TIMEOUT_S = 5.0


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Print the state of the server, and the limits of a URL. Raises `CommandError`."""
    try:
        with _warnings_shown():
            check_components(settings)
            ours = SemaphoreSettings.read(settings)
            request = _request(options.url, settings) if options.url else None
            asyncio.run(_check(settings, ours, request))
    except SemaphoreError as error:
        raise CommandError(str(error), Status.DECLINED) from None


class _Shown(logging.Handler):
    """Prints warnings: a command has no log."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"warning: {clean(record.getMessage())}")


@contextmanager
def _warnings_shown() -> Iterator[None]:
    ours, handler = logging.getLogger("semaphore_middleware"), _Shown(logging.WARNING)
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)


def _request(url: str, settings: BaseSettings) -> Request:
    """The request whose limits are shown, as a crawl would make it."""
    wrong = f"{clean(url)!r} is no URL like https://example.com/page"
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    try:
        has_scheme = urlsplit(url).scheme in handlers  # "data:" has no "//" behind it
        request = Request(url if has_scheme else add_http_if_no_scheme(url))
    except ValueError as error:
        raise CommandError(f"{wrong}: {error}", Status.WRONG) from None
    host = host_of(request)
    if not handlers.get(urlparse_cached(request).scheme) or len(host.split()) > 1:
        raise CommandError(wrong, Status.WRONG)
    if not host:
        raise CommandError(
            f"a request for {clean(url)!r} takes no permit, as it goes to no site", Status.WRONG
        )
    return request


async def _check(settings: BaseSettings, ours: SemaphoreSettings, request: Request | None) -> None:
    if not settings.getbool("SEMAPHORE_ENABLED", True):
        print("warning: SEMAPHORE_ENABLED is off: crawls do without the semaphore")
    warn_of_mistakes(settings, ours)
    log_origin_of_server(settings, ours.url_from)
    is_embedded = ours.url in (None, EMBEDDED)
    url = embedded.find() if is_embedded else ours.url
    if url is None:
        embedded.find_program()  # raises what a crawl would
        print("server: the embedded one, which a crawl starts")
        await _show_limits(ours, request, settings, None)
        return
    server = Server(
        url,
        call_timeout(ours.lease),
        ours.url_from,
        ours.prefix,
        ours.credentials,
        ours.redis_options,
    )
    named_by = "embedded" if is_embedded else f"from {ours.url_from}"
    print(f"server: {server}{prefix_named(ours.prefix)} ({named_by})")
    if server.is_loopback or (is_embedded and not ours.url_from):
        warn_of_others(str(server), bool(ours.url_from))
    async with admin_of(settings) as admin:
        await _check_server(server, ours)
        await _show_limits(ours, request, settings, admin)


async def _check_server(server: Server, ours: SemaphoreSettings) -> None:
    """Make the checks of a node's start, and print what a crawl would wait for."""
    keys = Keys(ours.prefix)
    recovery = Recovery(keys, ours, lambda _: None)
    store = Store(keys, ours.node or default_node(), machine(), ours, recovery)
    link = Link(server)

    async def look() -> None:
        connection = await open_checked(link, store)
        begun = await recovery.look(connection)
        print("  reachable, and permits what a crawl needs")
        recovery.log_loss(begun, connection)

    try:
        async with asyncio.timeout(SERVER_TIMEOUT_S):
            await link.insist(look, (ServerRefusedError,))
    except TimeoutError:
        problem = link.problem or f"cannot reach {server}: no answer"
        text = f"{problem} (waited {SERVER_TIMEOUT_S:g} s)"
        raise ServerUnreachableError(text) from None
    finally:
        await link.close()


# The limits of a URL -----------------------------------------------------------------------------


async def _show_limits(
    ours: SemaphoreSettings,
    request: Request | None,
    settings: BaseSettings,
    admin: Admin | None,
) -> None:
    """Print each scope of the request, with the parts of its limit."""
    if request is None:
        return
    scopes = ScopeFinder(ours.scopes, ours.limits).find_scopes(request)
    delayed = scopes
    if admin is not None and settings.getbool("ROBOTSTXT_OBEY"):
        delayed = await _with_crawl_delay(admin, ours, settings, scopes, request)
    rules = await admin.rules() if admin is not None else []
    print(f"\n{clean(request.url)}")
    if not scopes.limits:
        print("  no permit is needed: no limit holds for it")
    for (name, limit), (_, with_delay) in zip(scopes.limits, delayed.limits, strict=True):
        seen = await admin.inspect(name) if admin is not None else Inspection(name, None, ())
        sources = dict(ours.limits.entry_of(name).sources)
        if with_delay != limit:
            sources |= dict.fromkeys(("delay", "jitter"), "Crawl-delay in its robots.txt")
        print(f"  {clean(name)}")
        rows = [*_rows(name, with_delay, sources, seen, rules)]
        width = max(len(text) for text, _ in rows)
        for text, source in rows:
            print(f"    {text:{width}}  {clean(source)}".rstrip())
    if settings.getbool("AUTOTHROTTLE_ENABLED"):
        first = settings.getfloat("AUTOTHROTTLE_START_DELAY")
        most = settings.getfloat("AUTOTHROTTLE_MAX_DELAY")
        print(f"  AutoThrottle adds a delay: {first:g} s at first, {most:g} s at most")


def _rows(
    name: str, own: Limit, sources: Mapping[str, str], seen: Inspection, rules: Sequence[Rule]
) -> Iterator[tuple[str, str]]:
    """Each effective part of a scope's limit, with where it comes from, and what else holds
    requests back. Rules count before the strictest limit that any node asks for.
    """
    asked = reduce(strictest, [member.asks_for for member in seen.members], own)
    by_name = {rule.name: rule for rule in rules}
    fitting = [by_name[each] for each in (name, *patterns_for(name)) if each in by_name]
    parts: dict[str, tuple[Any, str]] = {}  # by name, the value and its source
    for part in PARTS:
        rule = next((rule for rule in fitting if part.name in rule.limit), None)
        value = getattr(asked, part.name)
        if rule is not None:
            parts[part.name] = rule.limit[part.name], _of_rule(rule)
        elif value != part.default:
            is_own = value == getattr(own, part.name)
            source = sources.get(part.name, "") if is_own else _of_nodes(part.name, value, seen)
            parts[part.name] = value, source
    jitter, source_of_jitter = parts.pop("jitter", (0.0, ""))
    for part_name, (value, source) in parts.items():
        if part_name == "delay":
            more = f"; ±: {source_of_jitter}" if jitter and source_of_jitter != source else ""
            yield f"delay {delay_word(value, jitter)}", f"{source}{more}"
        else:
            yield BY_NAME[part_name].word(value), source
    if seen.learned:
        yield f"learned {seen.learned}", "from the site's answers"
    pause = next((rule for rule in fitting if rule.paused is not None), None)
    if pause is not None and pause.paused:
        yield "paused", _of_rule(pause)
    elif seen.reason is not None and seen.reason.kind == "closed":
        yield seen.state, seen.why


def _of_rule(rule: Rule) -> str:
    return f"rule for {rule.name}, set by {short_name(rule.by)}"


def _of_nodes(part: str, value: object, seen: Inspection) -> str:
    """The nodes that ask for this value of a part, as text."""
    asking = [member for member in seen.members if getattr(member.asks_for, part) == value]
    nodes = names_of([short_name(member.node) for member in asking])
    return f"asked for by {nodes}" if asking else "of several nodes' limits"


async def _with_crawl_delay(
    admin: Admin,
    ours: SemaphoreSettings,
    settings: BaseSettings,
    scopes: Scopes,
    request: Request,
) -> Scopes:
    """The scopes with the delay in the site's robots.txt, if a node has put it into the cache."""
    from semaphore_middleware.scrapy.robotstxt import RobotsTxt, name_of_file  # slow

    key = Keys(ours.prefix).cached(name_of_file(origin_of(request)))
    async with admin.connected() as connection:
        (packed,) = await connection.execute([("GET", key)])
    robotstxt = RobotsTxt.unpack(packed or b"")
    if robotstxt is None or robotstxt.problem:
        return scopes
    delays = CrawlDelays(settings, ours.max_crawl_delay)
    delays.record(ProtegoRobotParser(robotstxt.text, None), request)
    return delays.apply(scopes, request)
