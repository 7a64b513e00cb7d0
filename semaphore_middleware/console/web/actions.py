"""What may be changed from the page, as one small JSON object each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError

ACTIONS = ("limit", "pause", "resume", "reset")


def read_action(admin: Admin, body: bytes) -> Callable[[], Awaitable[None]]:
    """The change that a request's body asks for; calling it makes the change.

    Raises `SettingsError`; a limit that is not allowed raises it when the change is made.
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
    if isinstance(name, str):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"the limit of {name!r}: not a text that can be sent") from None
    if action == "limit":
        return lambda: admin.configure(name, request["limit"])
    change = {"pause": admin.pause, "resume": admin.resume, "reset": admin.reset}[action]
    return lambda: change(name)
