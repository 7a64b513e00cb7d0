"""Where the server is, when nobody says so in code: the environment's address."""

from __future__ import annotations

import os

URLS = ("SEMAPHORE_REDIS_URL", "REDIS_URL")  # in the settings, then in the environment


def url_from_environment() -> tuple[str | None, str]:
    """Where programs and containers put it; None means the embedded server."""
    for name in URLS:
        if os.environ.get(name):
            return os.environ[name], f"{name} in the environment"
    return None, "the environment"
