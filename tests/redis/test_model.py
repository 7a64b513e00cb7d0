"""The semaphore's protocol against a plain model of it, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.servers import RedisServer
from tests.support.state_machine import Playground, machine_on

EXAMPLES = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # the same steps each time; `hypothesis` prints those that fail
    database=None,
    suppress_health_check=list(HealthCheck),  # a server in the loop is slow and shared: on purpose
)


@pytest.fixture
def ground(server: RedisServer) -> Iterator[Playground]:
    ground = Playground(server)
    yield ground
    ground.close()


def test_the_scripts_do_what_the_model_does(ground: Playground) -> None:
    run_state_machine_as_test(machine_on(ground), settings=EXAMPLES)
