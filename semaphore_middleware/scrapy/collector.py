"""What Python's garbage collector need not look at."""

from __future__ import annotations

import functools
import gc


@functools.cache  # once a process: what a later crawl leaves behind is to be collected
def spare_the_collector() -> None:
    """Leave what is there now out of the collector's rounds.

    It looks again and again at all that was ever loaded, which is a fifth of a crawl's processor
    time, and redis-py adds a tenth to that. What a process has loaded is there to stay.
    """
    gc.collect()
    gc.freeze()
