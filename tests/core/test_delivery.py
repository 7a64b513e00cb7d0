"""Statements, replies and notifications that come twice, late, in any order, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.core.state_machine import Playground, machine_on
from tests.support.servers import RedisServer

EXAMPLES = settings(
    max_examples=100,
    stateful_step_count=50,
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


def test_the_limit_holds_however_often_and_late_each_message_comes(ground: Playground) -> None:
    run_state_machine_as_test(machine_on(ground), settings=EXAMPLES)
