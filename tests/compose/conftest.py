"""Containers take minutes, root and packages: they run in `make compose-test`, or `-m compose`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose import images
from tests.compose.engine import Engine, missing


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Podman, with the images that docker-compose.yml and the Dockerfile start from."""
    if reason := missing():
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="sem-compose-") as directory,
        Engine(Path(directory)).running() as engine,
    ):
        images.make(engine)
        yield engine
