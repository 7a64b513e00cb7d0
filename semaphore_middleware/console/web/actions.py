"""The changes allowed from the page, each as one small JSON object."""

from __future__ import annotations

import json
from typing import Any

from semaphore_middleware.console.names import check_name
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.frontier.crawls import Crawls

OF_SCOPES = ("limit", "pause", "resume", "reset")
OF_CRAWLS = ("drop", "retry")
ACTIONS = (*OF_SCOPES, "evict", *OF_CRAWLS)


async def act(admin: Admin, crawls: Crawls, body: bytes) -> dict[str, int] | None:
    """Make the change asked for in a request's body. Returns the numbers to show, if any.

    Raises `SettingsError`, also for an unknown node or crawl, and what `Admin` and `Crawls` raise.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise SettingsError('the body is not a JSON object, like {"action": "pause", "name": "…"}')
    unknown = [key for key in request if key not in ("action", "name", "limit")]
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r}; allowed are 'action', 'name' and 'limit'")
    action, name = request.get("action"), request.get("name", "")
    if action not in ACTIONS:
        raise SettingsError(f"action = {action!r}: allowed is one of {', '.join(ACTIONS)}")
    if (action == "limit") != ("limit" in request):
        raise SettingsError("a 'limit' belongs to the action 'limit', and to no other")
    if not isinstance(name, str):
        raise SettingsError(f"name = {name!r}: allowed is a text")
    if action in OF_SCOPES:
        await _change_rule(admin, action, name, request.get("limit"))
        return None
    return await (_evict(admin, name) if action == "evict" else _of_crawl(crawls, action, name))


async def _change_rule(admin: Admin, action: str, name: str, limit: Any) -> None:
    await check_name(admin, action, name)
    if action == "limit":
        await admin.configure(name, limit)
    else:
        await {"pause": admin.pause, "resume": admin.resume, "reset": admin.reset}[action](name)


async def _evict(admin: Admin, node: str) -> dict[str, int]:
    permits, requests = await admin.evict(node)
    if not permits and not requests:
        raise SettingsError(f"no node {node!r} holds a permit or waits")
    return {"permits": permits, "requests": requests}


async def _of_crawl(crawls: Crawls, action: str, name: str) -> dict[str, int] | None:
    async with crawls.of(name) as crawl:
        if action == "drop":
            if await crawl.drop():
                return None
        elif (count := await crawl.retry()) is not None:
            return {"requests": count}
    raise SettingsError(f"there is no crawl {name!r}")
