"""The rights of users that docs/production.md lists."""

from __future__ import annotations

import re
from collections.abc import Iterable

from redis import Redis

from semaphore_middleware.link.rights import commands_in as named_in
from semaphore_middleware.link.scripts import Script
from tests.docs.pages import page
from tests.support.servers import RedisServer

DOCUMENTED = re.findall(r"^user (\w+) on >(\S+) (.*)$", page("docs/production.md"), re.MULTILINE)
RIGHTS = {name: rights.split() for name, _, rights in DOCUMENTED}
# A node that shares no crawl: the page says what it can do without.
RIGHTS["node"] = RIGHTS["crawler"][: RIGHTS["crawler"].index("~{crawl:*")]


def rights_of(name: str, client: Redis, changes: Iterable[str] = ()) -> list[str]:
    """Those on the page, and some changes; of what this server does not know, what the page says
    instead.
    """
    rights = [*RIGHTS[name], *changes]
    if client.info("server")["redis_version"] < "7":
        rights = [right.replace("%R~", "~").replace("evalsha_ro", "evalsha") for right in rights]
    return rights


def user(server: RedisServer, *changes: str, name: str = "node") -> str:
    """The address for such a user, whose rights differ from those on the page by some changes."""
    with server.client() as client:
        rights = rights_of(name, client, changes)
        client.execute_command("ACL", "SETUSER", name, "reset", "on", ">p", *rights)
        client.execute_command("ACL", "LOG", "RESET")
        client.config_resetstat()
    return f"unix://{name}:p@{server.path}"


def assert_refused_nothing(server: RedisServer) -> None:
    """Check that no user was refused anything since it was made."""
    with server.client() as client:
        assert client.execute_command("ACL", "LOG") == []


def commands_in(*given: Script) -> set[str]:
    return {name.lower() for name in named_in(given)}
