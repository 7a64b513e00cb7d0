"""What people with the token ask for, as one small JSON object each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError

DEEDS = ("limit", "pause", "resume", "reset")


def read_order(semaphore: Admin, body: bytes) -> Callable[[], Awaitable[None]]:
    """What is to be done. Raises `SettingsError`; bad limits do when it is done."""
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict):
        raise SettingsError('the body is not a JSON object, like {"do": "pause", "name": "…"}')
    unknown = [key for key in order if key not in ("do", "name", "limit")]
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r}; allowed are 'do', 'name' and 'limit'")
    deed, name = order.get("do"), order.get("name", "")
    if deed not in DEEDS:
        raise SettingsError(f"do = {deed!r}: allowed is one of {', '.join(DEEDS)}")
    if (deed == "limit") != ("limit" in order):
        raise SettingsError("a 'limit' belongs to the deed 'limit', and to no other")
    if isinstance(name, str):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"the limit of {name!r}: not a text that can be sent") from None
    if deed == "limit":
        return lambda: semaphore.configure(name, order["limit"])
    change = {"pause": semaphore.pause, "resume": semaphore.resume, "reset": semaphore.reset}[deed]
    return lambda: change(name)
