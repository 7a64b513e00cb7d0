"""The scripts by which operators change what holds."""

from __future__ import annotations

from semaphore_middleware.core.scripts import WORDS
from semaphore_middleware.link.scripts import Script

PACKAGE = "semaphore_middleware.operators"
EVICT = Script("evict", PACKAGE, WORDS)
CHANGE_RULE = Script("change_rule", PACKAGE, WORDS)
FORGET = Script("forget", PACKAGE, WORDS)
