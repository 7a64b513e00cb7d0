"""The rights of users that docs/production.md lists."""

from __future__ import annotations

import re

from redis import Redis

from semaphore_middleware.link.rights import commands_in as named_in
from semaphore_middleware.link.scripts import Script
from tests.docs.pages import page

DOCUMENTED = re.findall(r"^user (\w+) on >(\S+) (.*)$", page("docs/production.md"), re.MULTILINE)
RIGHTS = {name: rights.split() for name, _, rights in DOCUMENTED}
# A node that shares no crawl: the page says what it can do without.
RIGHTS["node"] = RIGHTS["crawler"][: RIGHTS["crawler"].index("~{crawl:*")]


def rights_of(name: str, client: Redis) -> list[str]:
    """Those on the page; of what this server does not know, what the page says instead."""
    rights: list[str] = RIGHTS[name]
    if client.info("server")["redis_version"] < "7":
        rights = [right.replace("%R~", "~").replace("evalsha_ro", "evalsha") for right in rights]
    return rights


def commands_in(*given: Script) -> set[str]:
    return {name.lower() for name in named_in(given)}
