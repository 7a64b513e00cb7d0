"""The changes allowed from the page, each as one small JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from semaphore_console.sections import Section
from semaphore_middleware.commands.snapshot import check_name
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError

OF_SCOPES = ("limit", "pause", "resume", "reset")


async def act(admin: Admin, sections: Iterable[Section], body: bytes) -> dict[str, int] | None:
    """Make the change asked for in a request's body. Returns the numbers to show, if any.

    Raises `SettingsError`, also for an unknown node or row, and what `admin` and `sections` raise.
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
    section_of = {each: section for section in sections for each in section.actions}
    actions = (*OF_SCOPES, "evict", *section_of)
    if action not in actions:
        raise SettingsError(f"action = {action!r}: allowed is one of {', '.join(actions)}")
    if (action == "limit") != ("limit" in request):
        raise SettingsError("a 'limit' belongs to the action 'limit', and to no other")
    if not isinstance(name, str):
        raise SettingsError(f"name = {name!r}: allowed is a text")
    if action in OF_SCOPES:
        await _change_rule(admin, action, name, request.get("limit"))
        return None
    if action == "evict":
        return await _evict(admin, name)
    return await section_of[action].act(action, name)


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
