"""Coroutines, for tests and helpers that have no loop of their own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.times import TIMEOUT_S

Result = TypeVar("Result")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop in a thread of its own: the test's thread may have one that runs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def result_of(call: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in that loop, and return its result."""
    return asyncio.run_coroutine_threadsafe(call, _loop()).result(TIMEOUT_S)
