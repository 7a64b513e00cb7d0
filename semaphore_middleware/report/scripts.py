"""The history's Lua scripts."""

from __future__ import annotations

from semaphore_middleware.core.scripts import words_of
from semaphore_middleware.link.scripts import Script
from semaphore_middleware.report.records import RECORDS

PACKAGE = "semaphore_middleware.report"
NOTE_HISTORY = Script("note_history", PACKAGE, words_of(RECORDS))
NOTE_ROBOTSTXT = Script("note_robotstxt", PACKAGE)
READ_HISTORY = Script("read_history", PACKAGE, words_of(RECORDS), read_only=True)
