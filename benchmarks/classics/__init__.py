"""The semaphores of the literature, each written here from its description.

They are those of Josiah L. Carlson, Redis in Action (Manning, 2013): chapter 6.3, in the order in
which it repairs one with the next, chapter 11.2 for the one in Lua, and the lock that Redis' own
documentation describes. Where they say "try again later", `acquire` does so: see `asking`.
"""

from __future__ import annotations

from benchmarks.classics.counter import OwnersByCounter
from benchmarks.classics.lock import LockWithToken
from benchmarks.classics.locked import OwnersUnderLock
from benchmarks.classics.refreshed import RefreshedOwners
from benchmarks.classics.script import HoldersInLua
from benchmarks.classics.timestamps import SetByTimestamp
from benchmarks.harness.contender import Contender

BY_TIMESTAMP = Contender.of("timestamps", SetByTimestamp)
COUNTING = (
    BY_TIMESTAMP,
    Contender.of("counter", OwnersByCounter),
    Contender.of("locked", OwnersUnderLock),
    Contender.of("refreshed", RefreshedOwners),
    Contender.of("in Lua", HoldersInLua),
)
LOCK = Contender.of("lock of 1", LockWithToken)
