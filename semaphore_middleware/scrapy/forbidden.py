"""Sites that answer 403 to many requests, which may be refusals that no setting names."""

from __future__ import annotations

import logging
from collections.abc import Set

from scrapy.utils.datatypes import LocalCache

logger = logging.getLogger(__name__)

FORBIDDEN = 403
HOSTS_MAX = 10_000
"""The number of hosts whose answers are counted."""
LEAST = 3
"""The fewest such answers that are worth a warning."""
MANY = 60
"""At this number of answers both counts are halved: older ones count less."""


class ForbiddenShares:
    """Counts each host's answers, and warns once of a host that answers 403 to a third of its
    requests.
    """

    def __init__(self, backoff_codes: Set[int]) -> None:
        self._listed = sorted({*backoff_codes, FORBIDDEN})
        self._is_listed = FORBIDDEN in backoff_codes
        self._counts: LocalCache[str, tuple[int, int] | None] = LocalCache(HOSTS_MAX)
        """By host: its answers, and those with 403; None after the warning."""

    def note(self, host: str, status: int) -> None:
        """Count an answer that does not count as a refusal."""
        counts = self._counts.get(host, (0, 0))
        if self._is_listed or counts is None:
            return
        answers, forbidden = counts[0] + 1, counts[1] + (status == FORBIDDEN)
        if forbidden >= LEAST and 3 * forbidden >= answers:
            self._counts[host] = None
            logger.warning(
                "%s has answered 403 to %d of the last %d requests. If these are refusals of too "
                "many requests, set SEMAPHORE_BACKOFF_CODES = %s; if only some of them are, set "
                "SEMAPHORE_BACKOFF_WHEN to a function that recognises them.",
                host,
                forbidden,
                answers,
                self._listed,
            )
        elif answers < MANY:
            self._counts[host] = answers, forbidden
        else:
            self._counts[host] = answers // 2, forbidden // 2
