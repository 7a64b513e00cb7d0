"""Tests that are coroutines run on the reactor's loop."""

from tests.scrapy.conftest import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]
