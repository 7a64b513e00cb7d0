"""Reasons why no request may start at a site: one row each, for logs, tables, page and metrics.

A script names a reason where one of its gates holds a start back (`core/lua/shared/promote.lua`).
Policies add further reasons: `politeness.ALL_REASONS` has all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from semaphore_middleware.link.text import time_of

Kind: TypeAlias = Literal["closed", "no_room", "not_yet"]
"""The gate of the reason: the site is closed, all its permits are held, or it is not time yet."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One row of the table."""

    name: str
    kind: Kind
    sentence: str

    def text(self, wait: float | None) -> str:
        """The sentence, and its remaining time if known."""
        if wait is None:
            return self.sentence
        return f"{self.sentence} Nothing starts for another {time_of(wait)}."


REASONS = (
    Reason("recovery", "closed", "The server is new, or may have lost its data."),
    Reason("paused", "closed", "An operator has paused the site until it is resumed."),
    Reason(
        "backoff",
        "closed",
        "The site refused a request, did not respond, or asked for a pause.",
    ),
    Reason("full", "no_room", "All permits are held."),
    Reason("delay", "not_yet", "A delay spaces the starts."),
    Reason("rate", "not_yet", "A rate limits the starts."),
)
BY_NAME = {reason.name: reason for reason in REASONS}
