"""The options of a node, checked: a session, its store and `FairSemaphore` share one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.jobs import check_job, check_weight
from semaphore_middleware.model.lease import LONGEST_LEASE_S
from semaphore_middleware.model.validation import check_number, check_prefix

_CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "lease": partial(check_number, least=0.001, most=LONGEST_LEASE_S),
    "recovery_wait": check_number,
    "turn": check_number,
    "prefix": check_prefix,
    "job": check_job,
    "weight": check_weight,
    "history": check_number,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of a node; `FairSemaphore` has their meanings and defaults. Times are in seconds.

    Raises `SettingsError` for a value that is not allowed.
    """

    lease: float
    recovery_wait: float
    turn: float
    prefix: str
    job: str
    weight: float
    backoff: Backoff
    history: float

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name), name))
