"""Statements, replies and notifications that come twice, late, in any order, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.state_machine import Machine, Playground
from tests.support.machines import EXAMPLES, run_machine
from tests.support.servers import RedisServer


def run_accounts(server: RedisServer, **options: Any) -> None:
    """Nodes' accounts against the real scripts, whatever becomes of their messages."""
    run_machine(Machine, Playground, server, steps=50, **options)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_the_limit_holds_however_often_and_late_each_message_comes(
    server: RedisServer, examples: int
) -> None:
    run_accounts(server, examples=examples)
