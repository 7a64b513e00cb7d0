"""The history's Lua scripts."""

from __future__ import annotations

from semaphore_middleware.redis.scripts import Script
from semaphore_middleware.report.records import RECORDS

NOTE_HISTORY = Script("note_history", "semaphore_middleware.report", RECORDS)
NOTE_ROBOTSTXT = Script("note_robotstxt", "semaphore_middleware.report")
READ_HISTORY = Script("read_history", "semaphore_middleware.report", RECORDS, read_only=True)
