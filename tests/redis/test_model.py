"""The semaphore's protocol against a plain model of it, on a real server."""

from __future__ import annotations

from typing import Any

from tests.support.machines import run_machine
from tests.support.servers import RedisServer
from tests.support.state_machine import Machine, Playground


def run_model(server: RedisServer, **options: Any) -> None:
    """The scripts beside the model."""
    run_machine(Machine, Playground, server, steps=40, **options)


def test_the_scripts_do_what_the_model_does(server: RedisServer) -> None:
    run_model(server)
