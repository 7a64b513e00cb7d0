"""A machine that does to a real server whatever nodes, time and misfortune do, beside the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Coroutine
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.feedback import FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask, Notification, Verb
from tests.support.model import Model
from tests.support.nodes import Caller, Loop, Outside
from tests.support.servers import RedisServer

NODES = "abc"
SCOPES = ("s", "t")

nodes = st.sampled_from(NODES)
scopes = st.sampled_from(SCOPES)
limits = st.integers(1, 3)
twice = st.booleans()  # the reply to the first call was lost

Table = dict[tuple[str, str], list[int]]  # node and scope -> numbers of permits


class Playground:
    """A server and three nodes that all examples share: to make them anew takes the most time."""

    def __init__(self, server: RedisServer) -> None:
        self.loop = Loop()
        self.outside = Outside(server)
        self.callers = {name: self.loop.run(Caller.join(server, name)) for name in NODES}
        self.bystander = self.loop.run(Caller.join(server, "bystander"))

    def close(self) -> None:
        self.loop.close()

    def poke(self, scope: str) -> None:
        self.loop.run(self.bystander.poke(scope))

    def reset(self) -> None:
        self.outside.client.flushall()
        for scope in SCOPES:
            self.poke(scope)
        self.outside.end_recovery(*SCOPES)
        self.outside.told()


class Machine(RuleBasedStateMachine):
    """After each step model and server agree."""

    ground: Playground

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(1)
        self.models = {scope: Model() for scope in SCOPES}
        self.holds: Table = defaultdict(list)
        self.waits: Table = defaultdict(list)

    @initialize()
    def begin(self) -> None:
        self.ground.reset()

    # What nodes do --------------------------------------------------------------------------------

    @rule(node=nodes, scope=scopes, limit=limits, twice=twice, many=st.integers(1, 4))
    def ask(self, node: str, scope: str, limit: int, twice: bool, many: int) -> None:
        new = [next(self.numbers) for _ in range(many)]
        self.waits[node, scope] += new
        self.say("acquire", node, scope, new, limit, twice)

    @precondition(lambda self: any(self.waits.values()))
    @rule(data=st.data(), limit=limits, twice=twice)
    def ask_again(self, data: Any, limit: int, twice: bool) -> None:
        (node, scope), numbers = self.some_of(self.waits, data)
        self.say("acquire", node, scope, numbers, limit, twice)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data(), limit=limits, twice=twice)
    def renew(self, data: Any, limit: int, twice: bool) -> None:
        (node, scope), numbers = self.some_of(self.holds, data)
        self.say("renew", node, scope, numbers, limit, twice)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data(), limit=limits, twice=twice)
    def give_back(self, data: Any, limit: int, twice: bool) -> None:
        self.let_go(self.holds, data, limit, twice)

    @precondition(lambda self: any(self.waits.values()))
    @rule(data=st.data(), limit=limits, twice=twice)
    def cancel(self, data: Any, limit: int, twice: bool) -> None:
        self.let_go(self.waits, data, limit, twice)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data(), limit=limits, twice=twice)
    def hear_not_now(self, data: Any, limit: int, twice: bool) -> None:
        (node, scope), numbers = self.some_of(self.holds, data)
        for number in numbers:
            self.holds[node, scope].remove(number)
        report = FeedbackSummary(refused=1, retry_after=200)
        ask = Ask("report", scope, Limit(limit), tuple(numbers), report)
        ids = tuple(f"{node}:{number}" for number in numbers)
        caller, model = self.ground.callers[node], self.models[scope]
        for _ in range(1 + twice):
            told = model.refuse(ids, limit)
            (answer,) = self.ground.loop.run(caller.store.run(caller.connection, [ask]))
            assert [f"{node}:{n}" for n in answer.granted] == [id for id in told if id[0] == node]
            for number in answer.granted:
                self.take(node, scope, number)
            self.check_told([id for id in told if id[0] != node], scope)

    # What operators do ----------------------------------------------------------------------------

    @rule(
        scope=scopes, act=st.sampled_from(["configure", "reset", "pause", "resume"]), limit=limits
    )
    def operator_acts(self, scope: str, act: str, limit: int) -> None:
        model = self.models[scope]
        if act == "configure":
            model.rule = limit
            self.operate(self.admin.configure(scope, limit), scope)
        elif act == "pause":
            model.paused = True
            self.operate(self.admin.pause(scope), scope)
        else:
            model.paused = model.quiet = False
            if act == "reset":
                model.rule = None
            self.operate(
                self.admin.reset(scope) if act == "reset" else self.admin.resume(scope), scope
            )

    @property
    def admin(self) -> Admin:
        return self.ground.bystander.admin

    def operate(self, action: Coroutine[Any, Any, None], scope: str) -> None:
        self.ground.loop.run(action)
        self.ground.poke(scope)
        self.check_told(self.models[scope].promote(), scope)

    # What time and misfortune do ------------------------------------------------------------------

    @precondition(lambda self: any(model.line for model in self.models.values()))
    @rule(node=nodes)
    def leases_end(self, node: str) -> None:
        """The node has stopped renewing. It may be dead, or wake up and go on."""
        self.ground.outside.end_leases(node, *SCOPES)
        for scope, model in self.models.items():
            model.die(node)
            self.ground.poke(scope)
            self.check_told(model.promote(), scope)

    @precondition(lambda self: any(model.quiet for model in self.models.values()))
    @rule()
    def sites_may_be_asked_again(self) -> None:
        for scope, model in self.models.items():
            model.quiet = False
            self.ground.outside.end_quiet(scope)
            self.ground.poke(scope)
            self.check_told(model.promote(), scope)

    @precondition(lambda self: any(self.holds.values()) and any(self.waits.values()))
    @rule()
    def data_is_lost(self) -> None:
        self.ground.outside.client.flushall()
        for model in self.models.values():
            model.lose_all()

    @precondition(lambda self: any(model.recovering for model in self.models.values()))
    @rule()
    def recovery_ends(self) -> None:
        for scope, model in self.models.items():
            self.ground.poke(scope)
            self.ground.outside.end_recovery(scope)
            model.recovering = False
            self.ground.poke(scope)
            self.check_told(model.promote(), scope)

    # What always holds ----------------------------------------------------------------------------

    @invariant()
    def server_and_model_agree(self) -> None:
        for scope, model in self.models.items():
            assert sorted(self.ground.outside.held(scope)) == sorted(model.held)
            assert self.ground.outside.line(scope) == model.line

    @invariant()
    def nobody_waits_while_a_permit_is_free(self) -> None:
        for model in self.models.values():
            if model.line and not model.forbids:
                assert len(model.held) >= model.in_force

    @invariant()
    def what_is_written_down_twice_agrees(self) -> None:
        """So that a call need not count, or look for the dead."""
        for scope in SCOPES:
            state = self.ground.outside.state(scope)
            counted = {f"waiters:{id[0]}" for id in self.ground.outside.line(scope)}
            assert {field for field in state if field.startswith("waiters:")} == counted
            for field in counted:
                line = self.ground.outside.line(scope)
                assert int(state[field]) == sum(id[0] == field[-1] for id in line)
            known = {f"since:{id}" for id in self.ground.outside.everyone(scope)}
            assert {field for field in state if field.startswith("since:")} == known
            if known:
                assert float(state["due"]) <= self.ground.outside.first_lease_end(scope)

    @invariant()
    def every_key_expires(self) -> None:
        """But for what operators have set."""
        for key in self.ground.outside.client.scan_iter("*", count=1000):
            assert key.endswith(b":rules") or self.ground.outside.ttl(key) > 0, key

    def teardown(self) -> None:
        self.recovery_ends()
        for scope in SCOPES:
            self.operator_acts(scope, "reset", 1)
        for node, scope in {*self.holds, *self.waits}:
            mine = [*self.holds[node, scope], *self.waits[node, scope]]
            self.say("release", node, scope, mine, 1, twice=False)
        assert self.ground.outside.in_use() == set(), "nothing is left when all was given back"

    # ----------------------------------------------------------------------------------------------

    def some_of(self, table: Table, data: Any) -> tuple[tuple[str, str], list[int]]:
        """Of one node and scope, some permits in their order."""
        whose = data.draw(st.sampled_from([key for key, numbers in table.items() if numbers]))
        chosen = data.draw(st.sets(st.sampled_from(table[whose]), min_size=1))
        return whose, [number for number in table[whose] if number in chosen]

    def let_go(self, table: Table, data: Any, limit: int, twice: bool) -> None:
        (node, scope), numbers = self.some_of(table, data)
        for number in numbers:
            table[node, scope].remove(number)
        self.say("release", node, scope, numbers, limit, twice)

    def say(
        self, verb: Verb, node: str, scope: str, numbers: list[int], limit: int, twice: bool
    ) -> None:
        caller = self.ground.callers[node]
        ids = tuple(f"{node}:{number}" for number in numbers)
        said = tuple(numbers)
        for _ in range(1 + twice if said else 0):
            told, lost = self.models[scope].say(verb, ids, limit)
            answer = self.ground.loop.run(caller.say(verb, scope, said, limit))
            assert [f"{node}:{number}" for number in answer.lost] == lost
            model = self.models[scope]
            if model.limit is not None:
                assert answer.available == model.in_force - len(model.held) - len(model.line)
                assert answer.limit == model.in_force
            assert [f"{node}:{n}" for n in answer.granted] == [id for id in told if id[0] == node]
            for number in answer.lost:
                self.forget(self.holds[node, scope], number)
            for number in answer.granted:
                self.take(node, scope, number)
            self.check_told([id for id in told if id[0] != node], scope)

    def check_told(self, expected: list[str], scope: str) -> None:
        """Over its channel each node is told of its grants, in their order, and of nothing else."""
        by_node: dict[str, list[str]] = {node: [] for node in NODES}
        for node, text in self.ground.outside.told():
            message = Notification.read(text.encode())
            assert message is not None
            assert self.models[scope].forbids or not message.retry_in
            by_node[node] += [f"{node}:{number}" for number in message.granted]
        for node, ids in by_node.items():
            assert ids == [id for id in expected if id[0] == node]
            for id in ids:
                self.take(node, scope, int(id[2:]))

    def take(self, node: str, scope: str, number: int) -> None:
        self.forget(self.waits[node, scope], number)
        self.forget(self.holds[node, scope], number)
        self.holds[node, scope].append(number)

    @staticmethod
    def forget(numbers: list[int], number: int) -> None:
        if number in numbers:
            numbers.remove(number)


def machine_on(ground: Playground) -> type[Machine]:
    return type("Machine", (Machine,), {"ground": ground})
