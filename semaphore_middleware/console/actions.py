"""The changes allowed from the page, each as one small JSON object."""

from __future__ import annotations

import json

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.snapshot import check_name


async def act(admin: Admin, body: bytes) -> None:
    """Make the change that a request's body asks for. Raises `SettingsError`, and what `admin`
    raises.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise SettingsError('the body is not a JSON object, like {"action": "pause", "name": "…"}')
    unknown = [key for key in request if key not in ("action", "name")]
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r}; allowed are 'action' and 'name'")
    action, name = request.get("action"), request.get("name", "")
    if action not in ("pause", "resume"):
        raise SettingsError(f"action = {action!r}: allowed is pause or resume")
    if not isinstance(name, str):
        raise SettingsError(f"name = {name!r}: allowed is a text")
    await check_name(admin, action, name)
    await (admin.pause(name) if action == "pause" else admin.resume(name))
