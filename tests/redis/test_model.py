"""The semaphore's protocol against a plain model of it, on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.machines import EXAMPLES, run_machine
from tests.support.servers import RedisServer
from tests.support.state_machine import Machine, Playground


def run_model(server: RedisServer, **options: Any) -> None:
    """The scripts beside the model."""
    run_machine(Machine, Playground, server, steps=40, **options)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_the_scripts_do_what_the_model_does(server: RedisServer, examples: int) -> None:
    run_model(server, examples=examples)
