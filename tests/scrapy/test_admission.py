"""Property: the sets of `Admissions` match the states of its requests."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scrapy import Request

from semaphore_middleware.model.limits import Limit, parse_limits
from semaphore_middleware.scrapy import admission
from semaphore_middleware.scrapy.admission import Admission, Admissions, ScopeUsage, Standing, State
from semaphore_middleware.scrapy.scopes import ScopeFinder, Scopes

ASKING, WAITING, READY, ON_THE_WIRE, ANSWERED, OVER = State
SLOTS = 3
SCOPES = ("a.example", "b.example", "all", "unlimited.example")


class Permits:
    """A request's permits, and whether it gave them back."""

    def __init__(self) -> None:
        self.released = False

    def release(self) -> None:
        assert not self.released, "it gives its permits back once"
        self.released = True


def is_full(usage: ScopeUsage) -> bool:
    return usage.waiting > 0 or usage.held >= usage.concurrency


class Downloader(RuleBasedStateMachine):
    """Requests that come, ask, wait, start and go, in any possible order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        running = SimpleNamespace(get_running_loop=lambda: self.loop)
        self.patch = mock.patch.object(admission, "asyncio", running)
        self.patch.start()
        limits = parse_limits({"all": 2, SCOPES[3]: None}, {}, Limit(2))
        self.wakes = 0
        self.all = Admissions(ScopeFinder(("host", "all"), limits), SLOTS, self.room)
        self.all.scheduler_passes_over = True
        self.permits: dict[Admission, Permits] = {}
        self.following: dict[Admission, Any] = {}
        self.seen = (0, 0)

    def teardown(self) -> None:
        for needing in self.following.values():
            needing.__exit__(None, None, None)
        for one in list(self.all):
            if one.state is ON_THE_WIRE:
                self.all.move(one, OVER)
            self.all.leave_fetch(one)
        self.patch.stop()
        self.loop.close()
        assert not list(self.all)
        assert not self.all._usages
        for name in ("_exempt", "_only_waiting", "_in_slots", "_slot_queue"):
            assert not getattr(self.all, name), name

    def room(self) -> None:
        self.wakes += 1

    def among(self, data: st.DataObject, *states: State) -> Admission | None:
        found = [one for one in self.all if one.state in states and not one.has_left]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(
        names=st.sets(st.sampled_from(SCOPES), min_size=1),
        is_scheduled=st.booleans(),
        priority=st.integers(0, 3),
        is_needed=st.booleans(),
        data=st.data(),
    )
    def enter(
        self, names: set[str], is_scheduled: bool, priority: int, is_needed: bool, data: Any
    ) -> None:
        request = Request("http://a/", meta={"semaphore_scope": [*names]}, priority=priority)
        outer = self.among(data, ASKING, READY, ANSWERED) if is_needed else None
        if outer and outer.state is ASKING and (outer.slot or outer in self.all._in_slots):
            outer = None  # it is in the middle of asking
        self.all.enter_fetch(request, is_scheduled, outer)

    @rule(data=st.data())
    def take_over(self, data: Any) -> None:
        one = self.among(data, ASKING)
        if one is None or one.next_scope or one in self.all._slot_queue:
            return
        needers = {*one.needed_by}
        while more := {other for needer in needers for other in needer.needed_by} - needers:
            needers |= more
        ready = {needer for needer in needers if needer.state in (READY, ANSWERED)}
        has_slot = bool(self.all._in_slots & {one, *ready})
        taken = self.all.take_over(one)
        assert all(needer.state is ASKING for needer in ready)
        assert not self.all._in_slots & ready
        assert (one in self.all._in_slots) == has_slot
        kept = [needer for needer in ready if not self.permits[needer].released]
        assert len(kept) == (taken is not None)
        if taken is not None:
            assert taken is self.permits[kept[0]]  # type: ignore[comparison-overlap]
            self.permits[one] = self.permits[kept[0]]
            self.all.move(one, READY, taken)

    @rule(data=st.data())
    def must_wait(self, data: Any) -> None:
        if (
            (one := self.among(data, ASKING))
            and one.scopes.limits
            and one not in self.all._slot_queue
        ):
            self.all.follow(one, one.next_scope, True)
            assert one.state is WAITING

    @rule(data=st.data())
    def one_of_several(self, data: Any) -> None:
        one = self.among(data, ASKING, WAITING)
        if one and one.next_scope < len(one.scopes.limits) - 1 and one not in self.all._slot_queue:
            self.all.follow(one, one.next_scope + 1, False)
            assert one.state is ASKING

    @rule(data=st.data())
    def lose_one_of_several(self, data: Any) -> None:
        if (one := self.among(data, ASKING, WAITING)) and one.next_scope:
            self.all.follow(one, 0, False)
            assert one.state is ASKING

    @rule(data=st.data())
    def granted(self, data: Any) -> None:
        if (one := self.among(data, ASKING, WAITING)) and one not in self.all._slot_queue:
            self.permits[one] = Permits()
            self.all.move(one, READY, self.permits[one])  # type: ignore[arg-type]

    @rule(data=st.data())
    def begin(self, data: Any) -> None:
        if (one := self.among(data, READY)) and self.all.has_slot(one):
            self.all.move(one, ON_THE_WIRE)

    @rule(data=st.data())
    def answered(self, data: Any) -> None:
        if one := self.among(data, ON_THE_WIRE):
            self.all.move(one, ANSWERED)

    @rule(data=st.data())
    def give_back_unused(self, data: Any) -> None:
        if one := self.among(data, READY):
            self.all.move(one, ASKING)
            assert self.permits[one].released

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        if one := self.among(data, ON_THE_WIRE, ANSWERED, READY, ASKING, WAITING):
            self.all.move(one, OVER)

    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        if one := self.among(data, *State):
            was = one.state
            self.all.leave_fetch(one)
            assert (self.all.admission_of(one.request) is one) == (was is ON_THE_WIRE)

    @rule(data=st.data())
    def follow(self, data: Any) -> None:
        follower, leader = self.among(data, ASKING), self.among(data, ASKING, WAITING)
        if follower is None or follower is leader or follower in self.following:
            return
        if leader is None or not leader.needs:  # no request waits for itself
            self.following[follower] = self.all.needing(follower.request, leader)
            self.following[follower].__enter__()
            assert leader is None or not self.all._ready_needers(leader)

    @precondition(lambda self: self.following)
    @rule(data=st.data())
    def follow_no_longer(self, data: Any) -> None:
        follower = data.draw(st.sampled_from([*self.following]))
        self.following.pop(follower).__exit__(None, None, None)
        assert not any(follower in one.needed_by for one in self.all) or follower.needs

    @rule(names=st.sets(st.sampled_from(SCOPES)), data=st.data())
    def change_scopes(self, names: set[str], data: Any) -> None:
        one = self.among(data, ASKING)
        if one and not one.next_scope and one not in self.all._slot_queue:
            request = Request("http://a/", meta={"semaphore_scope": [*names]} if names else {})
            self.all.update(one, self.all._scopes.find_scopes(request) if names else Scopes())

    @precondition(lambda self: any(one.has_left for one in self.all))
    @rule(data=st.data())
    def end_after_the_fetch(self, data: Any) -> None:
        one = data.draw(st.sampled_from([one for one in self.all if one.has_left]))
        self.all.move(one, OVER)
        assert self.all.admission_of(one.request) is not one

    @invariant()
    def sets_hold_what_states_say(self) -> None:
        requests = list(self.all)
        for one in requests:
            needs_one = one.state is ASKING and any(needed.is_stuck for needed in one.needs)
            assert one.is_stuck == (one.state is WAITING or needs_one)
            assert (one.permits is not None) == (one.state in (READY, ON_THE_WIRE, ANSWERED))
            if one.permits is not None:
                assert not self.permits[one].released
        asking = {one for one in requests if one.state in (ASKING, WAITING)}
        for usage in self.all._usages.values():
            members = {one for one in requests if usage in one.usages}
            next_scope = {one for one in members & asking if one.usages[one.next_scope] is usage}
            waiting = {one for one in next_scope if one.state is WAITING}
            held = {one for one in members if usage in one.usages[: one.next_scope]}
            standings = dict.fromkeys(members, Standing.LATER)
            standings |= dict.fromkeys(next_scope, Standing.ASKS)
            standings |= dict.fromkeys(waiting, Standing.WAITS)
            standings |= dict.fromkeys(held, Standing.HOLDS)
            assert usage.members == standings
            counts = len(next_scope), len(waiting), len(held)
            assert (usage.asking, usage.waiting, usage.held) == counts
        exempt = {one for one in asking if one.is_stuck or is_full(one.usages[one.next_scope])}
        assert self.all._exempt == exempt
        exempt_before, wakes_before = self.seen
        assert len(exempt) <= exempt_before or self.wakes > wakes_before, "the engine has room"
        self.seen = (len(exempt), self.wakes)
        scheduled = {one for one in asking if one.is_scheduled}
        assert self.all._only_waiting == {
            one for one in scheduled if one.scopes.limits or one.is_stuck
        }

    @invariant()
    def slots_are_used_and_never_too_many(self) -> None:
        assert len(self.all._in_slots) <= SLOTS
        assert not self.all._slot_queue or len(self.all._in_slots) == SLOTS
        for one in self.all:
            if one.state in (ON_THE_WIRE, ANSWERED):
                assert one in self.all._in_slots
            if one.state is READY:
                assert (one in self.all._in_slots) != (one in self.all._slot_queue)


TestDownloader = Downloader.TestCase
