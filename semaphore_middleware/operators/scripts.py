"""The operators' Lua scripts: they inspect scopes, change rules and evict nodes."""

from __future__ import annotations

from semaphore_middleware.core.scripts import WORDS, words_of
from semaphore_middleware.link.scripts import Script
from semaphore_middleware.operators.records import RECORDS

PACKAGE = "semaphore_middleware.operators"
INSPECT = Script("inspect", PACKAGE, words_of(RECORDS), read_only=True)
EVICT = Script("evict", PACKAGE, WORDS)
CHANGE_RULE = Script("change_rule", PACKAGE, WORDS)
FORGET = Script("forget", PACKAGE, WORDS)
