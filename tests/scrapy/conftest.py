"""Tests that are coroutines run on the reactor's loop."""

from __future__ import annotations

import inspect

import pytest

from tests.support.crawls import asyncio_test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = asyncio_test(item.obj)
