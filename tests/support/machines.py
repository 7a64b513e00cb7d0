"""State machines of hypothesis whose examples share one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, core, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.servers import RedisServer

EXAMPLES = [20, pytest.param(100, marks=pytest.mark.slow)]
"""Of a machine's test: those of each run, and the slow ones."""


class Playground(Protocol):
    """What all examples share, as `ground` of the machine: to make it anew takes the most time."""

    def close(self) -> None: ...


def run_machine(
    machine: type[RuleBasedStateMachine],
    playground: Callable[[RedisServer], Playground],
    server: RedisServer,
    steps: int,
    examples: int,
    **options: Any,
) -> None:
    """Run a machine on a playground of its own, `steps` steps an example. `options` are settings.

    The steps are the same each time, and `hypothesis` prints those that fail. With pytest's option
    `--hypothesis-seed` they are others.
    """
    ground = playground(server)
    try:
        run_state_machine_as_test(
            type("Machine", (machine,), {"ground": ground}),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=core.global_force_seed is None,
                database=None,
                # A server in the loop is slow and shared: on purpose.
                suppress_health_check=list(HealthCheck),
                **options,
            ),
        )
    finally:
        ground.close()
