"""Containers take minutes, root and packages: they run in `make compose-test`, or `-m compose`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose import images
from tests.compose.engine import Engine, missing


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compose: the cluster of docker-compose.yml, in containers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = "takes minutes; run it with make compose-test"
    if "compose" in config.option.markexpr:
        reason = missing()
    if reason:
        for item in items:
            if item.get_closest_marker("compose"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Podman, with the images that docker-compose.yml and the Dockerfile start from."""
    with (
        tempfile.TemporaryDirectory(prefix="sem-compose-") as directory,
        Engine(Path(directory)).running() as engine,
    ):
        images.make(engine)
        yield engine
