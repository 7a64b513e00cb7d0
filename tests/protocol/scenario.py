"""The world in which the protocol is to hold: how many nodes, which faults, how long a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Restart: TypeAlias = Literal["empty", "with data", "lagging replica", "failover and back"]


@dataclass(frozen=True)
class Scenario:
    """A world to search. In each one messages are lost and late; the faults come on top.

    Times are in ticks. The deadline is 0.67 of the lease (in the code 0.65), and the server's clock
    moves by at most 0.17 of it a call (in the code 0.32).
    """

    nodes: int = 2
    calm: int = 0  # of these; their calls take no time, and nothing of them is lost, late or frozen
    limit: int = 1
    requests: int = 1  # that a node has at once
    lease_ticks: int = 6
    deadline_ticks: int = 4
    clock_step_ticks: int = 1
    closing_takes_time: bool = False  # a transfer that is told to end takes up to a tick
    plain: bool = False  # requests do not give up, and permits are not kept in hand: fewer states

    stale: int = 1  # statements a node that were given up, or repeated, and may still arrive
    notifications: int = 1  # a node that are remembered; each is heard any number of times
    twice: bool = False  # statements may arrive twice
    late_replies: bool = False
    clock_jumps: int = 0  # forwards or backwards, by more than a lease
    restarts: tuple[Restart, ...] = ()
    restart_count: int = 1
    flushes: int = 0
    freezes: int = 0
    looks_before_each_call: bool = False  # at the server's life; else when a link is made

    count_cap: int = 4  # no permit count in one term goes beyond it
