"""Adaptive limits: as many requests at a time as the site can take.

The option `adaptive` of a limit turns this on; `lua/adaptive.lua` finds the number.
"""

from __future__ import annotations

from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.politeness.policy import Policy

ADAPTIVE = Policy(
    name="adaptive",
    learned=(
        "working_limit",
        "is_steady",
        "held_limit",
        "usual_latency",
        "round_since",
        "round_answers",
        "round_sum",
    ),
    reasons=(
        Reason(
            "adaptive", "no_room", "All permits that the adaptive limit allows for now are held."
        ),
    ),
)
