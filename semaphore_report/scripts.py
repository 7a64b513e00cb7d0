"""The history's Lua scripts."""

from __future__ import annotations

from semaphore_middleware.redis.scripts import Script
from semaphore_report.records import RECORDS

NOTE_HISTORY = Script("note_history", "semaphore_report", RECORDS)
NOTE_ROBOTSTXT = Script("note_robotstxt", "semaphore_report")
READ_HISTORY = Script("read_history", "semaphore_report", RECORDS, read_only=True)
