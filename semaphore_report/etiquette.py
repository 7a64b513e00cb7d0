"""`scrapy semaphore etiquette`: the best practices of crawlers that a project keeps, and its page.

The practices are those of the IETF's draft-illyes-webbotauth-cbcp; addresses are published in the
format of draft-illyes-webbotauth-jafar.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from shutil import get_terminal_size
from string import Template
from textwrap import fill, indent
from typing import TYPE_CHECKING

from scrapy import Request

from semaphore_middleware import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.commands.formatting import count
from semaphore_middleware.commands.verbs import (
    CommandError,
    Status,
    Verb,
    do_with_admin,
    node_of,
    setting_of,
)
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.limits import LIMITLESS, Limit, parse_limit
from semaphore_report.history import History
from semaphore_report.reader import read_latest
from semaphore_report.verify import network_of

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

Kept = dict[str, tuple[str, str]]
"""By practice: its state, and how it is met or what to do."""
MET, NOT_MET, UNKNOWN = "met", "not met", "cannot be told"
SITES_READ = 50
PERIOD_S = 7 * 86400.0
FAILING = 0.05  # of a site's requests, without a good answer
FEWEST = 20  # requests of a site from which its share counts
PAGE, ADDRESSES = "crawler.html", "crawler-ips.json"
CONTACT = re.compile(r"https?://[^\s;,()]+|[\w.+-]+@[\w-]+\.[\w.-]+")
ADDON = "semaphore_middleware.addon.SemaphoreAddon"
PUBLIC_ADDON = "semaphore_middleware.SemaphoreAddon"
COMPONENTS = ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `etiquette`."""
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON")
    add("--page", metavar="DIR", help=f"write {PAGE} and {ADDRESSES}, to be published")
    add("--address", metavar="CIDR", action="append", default=[], help="requests come from here")
    add("--use", metavar="TEXT", help="for the page: what the crawled data is used for")
    add("--contact", metavar="TEXT", help="for the page: how a site's owner can contact you")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Print the practices, and write the page. One that is not met is an error status."""
    project = Project(settings, options.address)
    kept = project.practices()
    if options.page:
        obeys = setting_of(settings, "ROBOTSTXT_OBEY")
        needed = (options.address, options.use, options.contact, obeys)
        if not all(needed):
            text = "--page needs --address, --use, --contact, and ROBOTSTXT_OBEY = True"
            raise CommandError(text, Status.WRONG)
        try:
            project.write_page(options, kept)
        except OSError as error:
            raise CommandError(f"--page {options.page}: {error.strerror}", Status.WRONG) from None
    elif options.use or options.contact:
        raise CommandError("--use and --contact are only for --page", Status.WRONG)
    if options.json:
        rows = [{"practice": name, "state": row[0], "how": row[1]} for name, row in kept.items()]
        print(json.dumps({"practices": rows}, indent=1))
    else:
        width = max(40, min(get_terminal_size().columns, 100))
        for practice, (state, how) in kept.items():
            print(f"{state:14}  {practice}")
            print(indent(fill(clean(how), width - 16), " " * 16))
    return Status.DECLINED if NOT_MET in dict(kept.values()) else Status.DONE


ETIQUETTE = Verb(
    "list the best practices of crawlers, and which of them the project keeps",
    run,
    add_options,
)


class Project:
    """A project's crawls: their settings, and their history at the sites that were noted last."""

    def __init__(self, settings: BaseSettings, addresses: list[str]) -> None:
        self.settings = settings
        self.networks = [*map(network_of, addresses)]
        self.agent = str(settings.get("USER_AGENT") or "")
        found = CONTACT.search(self.agent)
        self.contact = found[0] if found and "scrapy.org" not in found[0] else ""
        limits = node_of(settings, "")[1](Request("http://site.example/"))
        self.limit = next(iter(limits.values()), Limit(LIMITLESS))
        has_addon = not {ADDON, PUBLIC_ADDON}.isdisjoint(_paths(settings, "ADDONS"))
        self.is_shared = has_addon and setting_of(settings, "SEMAPHORE_ENABLED")
        self.history: list[History] = []
        self.no_history = "the history has too few requests"
        try:
            self.history = do_with_admin(settings, lambda it: read_latest(it, SITES_READ, PERIOD_S))
        except (CommandError, ServerRefusedError, ServerUnreachableError) as error:
            self.no_history = f"there is no history: {error}"

    def practices(self) -> Kept:
        """The practices, in the draft's order."""
        obeys = setting_of(self.settings, "ROBOTSTXT_OBEY")
        agent = f"USER_AGENT is {self.agent!r}"
        named = f"{agent}; name a page, as 'mybot/1.0 (+https://example.com/mybot.html)'"
        file = f"{ADDRESSES}, which --page writes from each --address"
        page = f"publish {PAGE}, which --page writes, and name its URL in USER_AGENT"
        has_page = self.contact.startswith("http")
        return {
            "Obey robots.txt": (
                (MET, "ROBOTSTXT_OBEY is True") if obeys else (NOT_MET, "set ROBOTSTXT_OBEY = True")
            ),
            "Obey X-Robots-Tag": self._robots_tag(),
            "Say in the user agent whose crawler it is": (
                (MET, agent) if self.contact else (NOT_MET, named)
            ),
            "Pause where a site refuses requests": self._refusals(),
            "Overload no site": self._failures(),
            "Slow down when a site does": self._response_times(),
            "Limit the speed": self._speed(),
            "Come when a site has few visitors": self._hours(),
            "Obey caching directives": self._caching(),
            "Publish the addresses": (
                (UNKNOWN, f"is {file}, published?")
                if self.networks
                else (NOT_MET, f"publish {file}")
            ),
            "Say on a page what the data is for, and how to block it": (
                (UNKNOWN, f"does {self.contact} say so?") if has_page else (NOT_MET, page)
            ),
        }

    def _robots_tag(self) -> tuple[str, str]:
        text = "neither Scrapy nor this package reads it"
        paths = [path for name in COMPONENTS for path in _paths(self.settings, name)]
        if own := [path for path in paths if not path.startswith(("scrapy.", "semaphore_"))]:
            return UNKNOWN, f"{text}; does one of yours ({', '.join(own)})?"
        return NOT_MET, f"{text}; docs/report.md has a middleware that does"

    def _refusals(self) -> tuple[str, str]:
        if not self.is_shared:
            return NOT_MET, f"add {ADDON} to ADDONS"
        codes = setting_of(self.settings, "SEMAPHORE_BACKOFF_CODES")
        if missing := sorted({429, 503} - codes):
            return NOT_MET, f"add {' and '.join(map(str, missing))} to SEMAPHORE_BACKOFF_CODES"
        return MET, "429, 503 and Retry-After make all nodes pause"

    def _failures(self) -> tuple[str, str]:
        sums = [(site.sum(), site.scope) for site in self.history]
        shares = [
            ((site.server_errors + site.silent) / site.requests, scope)
            for site, scope in sums
            if site.requests >= FEWEST
        ]
        if not shares:
            return UNKNOWN, self.no_history
        share, scope = max(shares)
        text = f"{share:.0%} of requests had 5xx or no response at {scope}, the highest share"
        if share > FAILING:
            return NOT_MET, f"{text}: scrapy semaphore limit {scope} 1"
        return MET, text

    def _response_times(self) -> tuple[str, str]:
        limits = setting_of(self.settings, "SEMAPHORE_LIMITS")
        parsed = [(name, parse_limit(value, name, self.limit)) for name, value in limits.items()]
        if adaptive := [name for name, limit in parsed if limit and limit.adaptive]:
            return MET, f"SEMAPHORE_LIMITS has adaptive limits: {', '.join(adaptive)}"
        return NOT_MET, "set 'adaptive': True for sites in SEMAPHORE_LIMITS"

    def _speed(self) -> tuple[str, str]:
        if not self.is_shared:
            return NOT_MET, f"add {ADDON} to ADDONS: else each process has a limit of its own"
        text = f"at most {count(self.limit.concurrency, 'request')} open at a site"
        if starts := [(site.sum().starts, site.scope) for site in self.history]:
            text += ", and at most {:,} begun in one second, at {}".format(*max(starts))
        if self.limit.delay:
            return MET, f"{text}; DOWNLOAD_DELAY is {self.limit.delay:g} s"
        return UNKNOWN, f"{text}; DOWNLOAD_DELAY is not set: does each site bear that?"

    def _hours(self) -> tuple[str, str]:
        hours = Counter[int]()
        for minute in (minute for site in self.history for minute in site.minutes):
            hours[minute.at // 3600 % 24] += minute.requests
        if not hours.total():
            return UNKNOWN, self.no_history
        ((hour, most),) = hours.most_common(1)
        text = f"{most / hours.total():.0%} of all requests began in the hour from {hour}:00 UTC on"
        return UNKNOWN, f"{text}, more than in any other; start crawls in the sites' night"

    def _caching(self) -> tuple[str, str]:
        policy = str(self.settings["HTTPCACHE_POLICY"])
        if setting_of(self.settings, "HTTPCACHE_ENABLED") and "DummyPolicy" not in policy:
            return MET if "RFC2616Policy" in policy else UNKNOWN, f"HTTPCACHE_POLICY is {policy}"
        wanted = "'scrapy.extensions.httpcache.RFC2616Policy'"
        return NOT_MET, f"set HTTPCACHE_ENABLED = True and HTTPCACHE_POLICY = {wanted}"

    def write_page(self, options: argparse.Namespace, kept: Kept) -> None:
        """Write the page and the addresses. Raises `OSError`."""
        folder = Path(options.page)
        folder.mkdir(parents=True, exist_ok=True)
        prefixes = [{f"ipv{net.version}Prefix": str(net)} for net in self.networks]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        token = sha256(json.dumps(prefixes).encode()).hexdigest()[:16]
        head = {"formatVersion": "1.0", "synctoken": token, "creationTime": now}
        text = json.dumps({**head, "prefixes": prefixes}, indent=1)
        (folder / ADDRESSES).write_text(f"{text}\n", "utf-8")
        words = re.findall(r"[A-Za-z][\w-]*", self.agent.removeprefix("Mozilla/5.0 (compatible;"))
        own_name = self.settings.get("ROBOTSTXT_USER_AGENT")
        in_browser = "playwright" in str(self.settings.getdict("DOWNLOAD_HANDLERS"))
        texts = {
            "bot": own_name or (*words, self.settings["BOT_NAME"])[0],
            "agent": self.agent,
            "use": options.use,
            "contact": options.contact,
            "rendering": "rendered in a browser" if in_browser else "not rendered: no script runs",
            "addresses": ", ".join(map(str, self.networks)),
            "file": ADDRESSES,
            "day": now[:10],
        }
        texts = {key: escape(text) for key, text in texts.items()}
        for key, wanted in {"met": MET, "not_met": NOT_MET}.items():
            found = [name for name, (state, _) in kept.items() if state == wanted]
            texts[key] = "".join(f"<li>{name}\n" for name in found or ["Nothing"])
        page = Template(resources.files(__package__).joinpath("etiquette.html").read_text("utf-8"))
        (folder / PAGE).write_text(page.substitute(texts), "utf-8")


def _paths(settings: BaseSettings, name: str) -> list[str]:
    """The classes in a setting, by their paths, but those that are turned off."""
    parts = [part for part, place in settings.getdict(name).items() if place is not None]
    return [p if isinstance(p, str) else f"{p.__module__}.{p.__qualname__}" for p in parts]
