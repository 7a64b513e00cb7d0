"""The history's records, as its scripts take and keep them (see `core.records`)."""

from __future__ import annotations

from collections.abc import Mapping

from semaphore_middleware.core.records import NUMBER, Record, numbers_of
from semaphore_middleware.report.history import HIGHEST, LOWEST, Minute

MINUTE = Record(numbers_of(Minute))
# A pause that began at a site: the field "pause:<wall clock>" of the hash of an hour. Times are in
# milliseconds. If several nodes note a pause, the highest of each number counts.
PAUSE = Record(
    {
        "length": NUMBER,
        "asked": NUMBER,  # by the site itself; 0: it named no time
        "refused": NUMBER,  # 1: the site refused a request; 0: it did not; -1: no node saw why
        "last": NUMBER,  # how long after its beginning the last request began; -1: there was none
    }
)
RECORDS: Mapping[str, Record] = {
    "minute": MINUTE,
    "pause": PAUSE,
    "highest": Record(dict.fromkeys(HIGHEST, NUMBER)),
    "lowest": Record(dict.fromkeys(LOWEST, NUMBER)),
}
"""Records by their names in scripts."""
