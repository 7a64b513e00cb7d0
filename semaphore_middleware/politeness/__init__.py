"""The policies, by which limits adapt to sites' answers.

To delete one, delete its files (`lab/features.toml`) and all lines marked `feature: NAME`;
`make without FEATURE=NAME` does so in a copy, and tests the rest.
"""

from __future__ import annotations

from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import REASONS
from semaphore_middleware.politeness.adaptive import ADAPTIVE  # feature: adaptive
from semaphore_middleware.politeness.blocked import BLOCKED  # feature: blocked
from semaphore_middleware.politeness.learned_interval import INTERVAL  # feature: learned_interval
from semaphore_middleware.politeness.policy import Policy
from semaphore_middleware.politeness.unresponsive import UNRESPONSIVE  # feature: unresponsive

POLICIES: tuple[Policy, ...] = (
    BLOCKED,  # feature: blocked
    ADAPTIVE,  # feature: adaptive
    INTERVAL,  # feature: learned_interval
    UNRESPONSIVE,  # feature: unresponsive
)
"""Their order decides their numbers on the wire, `VERSION`, and the reason shown if several shut a
site: that of the last.
"""
NO_FINDINGS: tuple[Finding, ...] = tuple(policy.finding() for policy in POLICIES)
"""The findings about a site of which nothing is known, in the order of `POLICIES`."""
ALL_REASONS = (*REASONS, *(reason for policy in POLICIES for reason in policy.reasons))
"""On the wire a reason is its number here, from 1; 0: none."""
