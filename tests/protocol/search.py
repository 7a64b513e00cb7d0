"""Follows all steps from the initial state, breadth first, so that a trace is a shortest one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.drains import Drains
from tests.protocol.numbering import Numbering
from tests.protocol.protocol import Protocol
from tests.protocol.rules import Rules
from tests.protocol.scenario import Scenario
from tests.protocol.state import Member, Server, State

MEMBER_BITS = 24
MEMBER_MASK = (1 << MEMBER_BITS) - 1
BEYOND_THE_CAP = -1


@dataclass(frozen=True)
class Verdict:
    """What a search has found."""

    states: int
    steps: int
    seconds: float
    violation: str | None
    trace: tuple[str, ...]  # the steps to the violation
    unexpanded: int  # states that a bound left unexplored
    beyond_the_cap: int  # steps that were not followed, since counts would exceed the cap
    drained: int  # states from which all came free and every waiter was granted, in bounded time

    @property
    def extent(self) -> str:
        if self.violation:
            return "until found"
        if self.unexpanded:
            return f"cut off, {self.unexpanded:,} unexpanded"
        if self.beyond_the_cap:
            return f"complete up to the cap ({self.beyond_the_cap:,} steps beyond it)"
        return "complete"


class Successor(NamedTuple):
    """A step and the state it leads to."""

    label: str
    state: State


class Search:
    """One scenario under one set of rules.

    A state is kept as one integer: the number of its server, then those of its members, sorted,
    since nodes are interchangeable. A node's own steps and ticks are worked out once a member.
    """

    def __init__(self, rules: Rules, scenario: Scenario) -> None:
        self.protocol = Protocol(rules, scenario)
        self.drains = Drains(self.protocol)
        self._numbering = Numbering(rules, scenario)
        self._size = scenario.nodes
        self._limit = scenario.limit
        self._servers: list[Server] = []
        self._server_ids: dict[Server, int] = {}
        self._members: list[Member] = []
        self._transfers: list[int] = []  # of each member
        self._wrongs: list[str | None] = []  # with each member
        self._normal_ids: dict[Member, int] = {}
        self._raw_ids: dict[Member, int] = {}
        self._node_steps: dict[int, list[int]] = {}
        self._ticked_servers: dict[int, int] = {}
        self._ticked_members: dict[int, int] = {}

    def run(
        self,
        *,
        seconds: float = float("inf"),
        states: int = 10_000_000,
        drain_every: int = 0,
    ) -> Verdict:
        """Searches until all is seen, something is wrong, or a bound is met.

        `drain_every` 40: each 40th state is drained, which finds leaks and lost wake-ups.
        """
        begun = time.monotonic()
        initial = self._key_of(self.protocol.initial())
        origins: dict[int, int | None] = {initial: None}
        todo = deque([initial])
        steps = beyond = expanded = drained = 0
        violation, culprit = None, initial
        while todo and violation is None:
            if expanded % 256 == 0 and (
                len(origins) > states or time.monotonic() - begun > seconds
            ):
                break
            key = todo.popleft()
            expanded += 1
            if drain_every and expanded % drain_every == 0:
                drained += 1
                violation, culprit = self.drains.violation(self._state(key)), key
                if violation:
                    break
            for successor in self._successors(key):
                steps += 1
                if successor == BEYOND_THE_CAP:
                    beyond += 1
                elif successor not in origins:
                    origins[successor] = key
                    violation = self._violation(successor)
                    if violation:
                        culprit = successor
                        break
                    todo.append(successor)
        return Verdict(
            states=len(origins),
            steps=steps,
            seconds=time.monotonic() - begun,
            violation=violation,
            trace=tuple(self._trace(origins, culprit)) if violation else (),
            unexpanded=0 if violation else len(todo),
            beyond_the_cap=beyond,
            drained=drained,
        )

    # States as integers -------------------------------------------------------------------------

    def _state(self, key: int) -> State:
        members = []
        for _ in range(self._size):
            members.append(self._members[key & MEMBER_MASK])
            key >>= MEMBER_BITS
        return State(self._servers[key], tuple(members))

    def _key_of(self, state: State) -> int:
        return self._key(
            self._server_id(state.server), [self._member_id(member) for member in state.members]
        )

    def _key(self, server: int, members: list[int]) -> int:
        members.sort()
        if members[0] == BEYOND_THE_CAP:
            return BEYOND_THE_CAP
        for member in members:
            server = server << MEMBER_BITS | member
        return server

    def _server_id(self, server: Server) -> int:
        id = self._server_ids.get(server)
        if id is None:
            id = self._server_ids[server] = len(self._servers)
            self._servers.append(server)
        return id

    def _member_id(self, member: Member) -> int:
        id = self._raw_ids.get(member)
        if id is None:
            id = self._raw_ids[member] = self._normal_id(member)
        return id

    def _normal_id(self, member: Member) -> int:
        normal = self._numbering.normal(member)
        if normal is None:
            return BEYOND_THE_CAP
        id = self._normal_ids.get(normal)
        if id is None:
            id = self._normal_ids[normal] = len(self._members)
            self._members.append(normal)
            self._transfers.append(self.protocol.transfers_of(normal))
            self._wrongs.append(self.protocol.wrong_with(normal))
        return id

    def _violation(self, key: int) -> str | None:
        transfers = 0
        for _ in range(self._size):
            member = key & MEMBER_MASK
            if self._wrongs[member]:
                return self._wrongs[member]
            transfers += self._transfers[member]
            key >>= MEMBER_BITS
        return "too many at once" if transfers > self._limit else None

    # Steps --------------------------------------------------------------------------------------

    def _successors(self, key: int) -> Iterator[int]:
        members = []
        rest = key
        for _ in range(self._size):
            members.append(rest & MEMBER_MASK)
            rest >>= MEMBER_BITS
        server = rest
        yield self._key(self._ticked_server(server), [self._ticked_member(id) for id in members])
        for index, member in enumerate(members):
            for after in self._steps_of(member):
                yield self._key(server, [*members[:index], after, *members[index + 1 :]])
        for _, state in self.protocol.world_steps(self._state(key)):
            yield self._key_of(state)

    def _steps_of(self, member: int) -> list[int]:
        steps = self._node_steps.get(member)
        if steps is None:
            steps = self._node_steps[member] = [
                self._member_id(after)
                for _, after in self.protocol.node_steps(self._members[member])
            ]
        return steps

    def _ticked_server(self, server: int) -> int:
        after = self._ticked_servers.get(server)
        if after is None:
            ticked = self.protocol.server_after_tick(self._servers[server])
            after = self._ticked_servers[server] = self._server_id(ticked)
        return after

    def _ticked_member(self, member: int) -> int:
        after = self._ticked_members.get(member)
        if after is None:
            ticked = self.protocol.member_after_tick(self._members[member])
            after = self._ticked_members[member] = self._member_id(ticked)
        return after

    # How it came to that ------------------------------------------------------------------------

    def _trace(self, origins: dict[int, int | None], culprit: int) -> Iterator[str]:
        """The steps to a state, told without renumbering, so that a node keeps its name."""
        path = []
        key: int | None = culprit
        while key is not None:
            path.append(key)
            key = origins[key]
        state = self.protocol.initial()
        ticks = 0
        for key in reversed(path[:-1]):
            step = next(step for step in self._told_steps(state) if self._key_of(step.state) == key)
            state = step.state
            if step.label == "tick":
                ticks += 1
            else:
                yield f"t={ticks}: {step.label}"

    def _told_steps(self, state: State) -> Iterator[Successor]:
        protocol = self.protocol
        members = state.members
        ticked = tuple(protocol.member_after_tick(member) for member in members)
        yield Successor("tick", State(protocol.server_after_tick(state.server), ticked))
        for index, member in enumerate(members):
            for label, after in protocol.node_steps(member):
                others = (*members[:index], after, *members[index + 1 :])
                yield Successor(f"node {index} {label}", State(state.server, others))
        for labels, after_step in protocol.world_steps(state):
            yield Successor(" ".join(map(str, labels)), after_step)
