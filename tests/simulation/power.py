"""Each rule of the protocol, and each promise, switched off: which seeds see it?

    python -m tests.simulation.power [--seeds 1000] [--only TEXT]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from semaphore_middleware.redis import scripts
from tests.simulation.plan import plan_for
from tests.simulation.run import run


@dataclass(frozen=True)
class Rule:
    """What the code says where a rule is kept, and what it says where it is not."""

    file: str
    """Of a script, or of a module below the package."""
    says: str
    instead: str


# By number in docs/how-it-works.md, where there is one; else by the promise in docs/guarantees.md.
RULES: Mapping[str, Rule] = {
    "1 a statement counts in its own epoch only": Rule(
        "sync.lua", "EPOCH ~= ARGV[3] or has_evicted()", "has_evicted()"
    ),
    "1 what is held is carried into another epoch": Rule(
        "core/account.py", "self._granted = len(self._held)", "pass"
    ),
    "2 what is carried keeps its deadline": Rule(
        "core/account.py", "            self.deadline = deadline\n", ""
    ),
    "3 a renewal looks which server it is": Rule(
        "core/session.py", "            self._is_look_due = True\n", ""
    ),
    "4 a term is new at the deadline": Rule(
        "core/account.py",
        "self._term = self._owner.new_term(above)",
        "self._term = max(self._term, above)",
    ),
    "5 a lower term is refused": Rule(
        "sync.lua", "if own and said.term < own.term then return 2 end", ""
    ),
    "5 a higher term closes the account": Rule(
        "sync.lua", "    close_account(scope, NODE, own)\n    own = nil\n", "    own = nil\n"
    ),
    "6 no new term before all transfers of the old one have ended": Rule(
        "core/account.py", "if self._ending or self.is_empty:", "if self.is_empty:"
    ),
    "7 outside the recovery wait no claim is believed": Rule(
        "sync.lua", "if claims and NOW >= FROM then", "if false then"
    ),
    "7 in the recovery wait claims are believed": Rule(
        "sync.lua", "if claims and NOW >= FROM then", "if claims then"
    ),
    "9 a surplus is given back": Rule("core/account.py", "        self._returned += new\n", ""),
    "9 who waits for less says so": Rule(
        "core/account.py", "            self._wants_fewer()\n            return", "            return"
    ),
    "10 an older statement changes nothing": Rule(
        "sync.lua", "elseif said.seq >= own.seq then", "elseif true then"
    ),
    "10 a message of another term changes nothing": Rule(
        "core/account.py", "if term == self._term and self.deadline", "if self.deadline"
    ),
    "10 a reply of another term changes nothing": Rule(
        "core/account.py",
        "        if statement.term != self._term:\n            return\n",
        "",
    ),
    "11 feedback counts once": Rule("sync.lua", " and own.returned > returned then", " then"),
    "11 feedback that was not answered is said again": Rule(
        "core/account.py", "[*self._unanswered, statement]", "[statement]"
    ),
    "12 an empty account is closed": Rule(
        "sync.lua",
        "if own and own.returned == own.granted and own.asked <= own.granted then",
        "if false then",
    ),
    "13 a deadline counts from the sending": Rule(
        "core/account.py",
        "max(self.deadline, sent + self._owner.grace)",
        "max(self.deadline, now + self._owner.grace)",
    ),
    "13 a deadline counts from an answered statement": Rule(
        "core/account.py", "if self.deadline == math.inf:\n            self.deadline", "if True:\n            self.deadline"
    ),
    "13 a node ends its transfers before its lease is over": Rule(
        "model/lease.py", "GRACE = 0.65", "GRACE = 1.1"
    ),
    "14 deadlines come before replies": Rule(
        "core/account.py",
        "        self.end_if_over(now)  # before any message: see docs/how-it-works.md\n",
        "",
    ),
    "15 nothing is handed on after the deadline": Rule(
        "core/account.py", "self._is_draining) and now < self.deadline", "self._is_draining)"
    ),
    "16 a newcomer counts as served": Rule("sync.lua", "served = next_tick(scope), is", "served = 0, is"),
    "17 all nodes take scopes in one order": Rule("run", "", ""),
    "18 a start that is pending lets no other start": Rule(
        "promote.lua", "if free > scope.pending then return free - scope.pending, 0 end",
        "if free > 0 then return free, 0 end",
    ),
    "18 a pending start of a node that is gone counts": Rule(
        "promote.lua", ", scope.begun = scope.pending - pending_at(account), scope.begun + pending_at(account)",
        " = scope.pending - pending_at(account)",
    ),
    # Promises
    "never more than the limit": Rule(
        "promote.lua", "1 or force.limit) - scope.held", "1 or force.limit + 1) - scope.held"
    ),
    "the lowest limit counts": Rule(
        "sync.lua", "math.min(scope.concurrency, said.concurrency)", "said.concurrency"
    ),
    "an operator's number holds": Rule(
        "limit.lua", "concurrency = rule.concurrency or scope.concurrency", "concurrency = scope.concurrency"
    ),
    "an operator's pause holds": Rule("promote.lua", " or force.paused then return 0", " then return 0"),
    "all nodes hear of a changed rule": Rule(
        "core/session.py", "                account.stop_turns()\n", "                pass\n"
    ),
    "a clock that jumps ahead ends no lease": Rule(
        "clock.lua", "clock + math.min(ADVANCE, STEP)", "clock + ADVANCE"
    ),
    "a clock that is set back stops nothing": Rule(
        "clock.lua", "math.max(0, WALL - wall)", "(WALL - wall)"
    ),
    "starts are spaced by a delay": Rule(
        "promote.lua", "math.max(scope.next_start, NOW) + math.max(0, varied)", "NOW"
    ),
    "starts keep to a rate": Rule(
        "promote.lua", "+ starts * force.interval", "+ force.interval / 2"
    ),
    "an idle site keeps its delay": Rule(
        "scope.lua", "scope.next_start = math.max(NOW, start + scope.next_start)", "scope.next_start = NOW"
    ),
    "no start in a backoff": Rule(
        "promote.lua", "math.max(FROM, learned.backoff_end) or FROM", "FROM or FROM"
    ),
    "a backoff ends": Rule(
        "feedback.lua", "math.min(report.longest, math.max(report.start, 2 * learned.backoff))", "1e9"
    ),
    "a node ends transfers whose permits are lost": Rule(
        "core/permit.py", "            self._when_lost()\n", "            pass\n"
    ),
    "deadlines are looked at": Rule(
        "core/session.py", "call_at(sent + self.grace, self._check_deadlines)", "call_at(sent + 1e9, self._check_deadlines)"
    ),
    "leases are renewed": Rule(
        "core/session.py", "            self._say_all()\n            self._renewal =", "            self._renewal ="
    ),
    "what the dead held is free again": Rule("promote.lua", "if NOW >= scope.due then", "if false then"),
    "after a loss nothing is granted for a while": Rule(
        "begin_epoch.lua", "NOW + (empty_run_id == run_id and WAIT_IF_EMPTY or WAIT)", "NOW"
    ),
    "a loss is noticed": Rule("begin_epoch.lua", "if known_life ~= life or", "if not known_life or"),
    "another version is kept out": Rule(
        "begin_epoch.lua", "if version and version ~= VERSION and", "if version and version == 0 and"
    ),
    "an eviction is a loss": Rule("sync.lua", " or has_evicted() then", " then"),
    "the next permit goes to who holds the fewest": Rule(
        "promote.lua", "math.min(held_by(account), 2097151) * TICKS + account.served", "account.served"
    ),
    "and among those to who was served longest ago": Rule(
        "promote.lua", "* TICKS + account.served", "* TICKS"
    ),
    "the highest priority comes first": Rule("core/account.py", "(-permit.priority, next", "(0, next"),
    "turns end": Rule("core/account.py", "if now < permit.turn_end and not", "if not"),
    "nodes are told of grants": Rule(
        "promote.lua", "if node ~= NODE then notify(node, 'granted'", "if false then notify(node, 'granted'"
    ),
    "whoever waits for time is told for how long": Rule("promote.lua", "    tell_when(scope, wait)\n", ""),
    "after a gap everything is said again": Rule(
        "core/session.py", "            self._look_if_waiting()\n            self._say_all()\n            return", "            return"
    ),
    "keys in use do not expire": Rule(
        "scope.lua", "local is_ending = scope.expires < WALL + KEPT / 2", "local is_ending = scope.expires == 0"
    ),
    "keys expire": Rule("scope.lua", "redis.call('PEXPIREAT', scope.key, scope.expires)", "local _ = 0"),
    "an idle scope leaves nothing": Rule(
        "scope.lua", "  if not scope.is_new then redis.call('DEL', scope.key) end\n", ""
    ),
    "a full server goes on": Rule("redis/store.py", ", though_full=True", ""),
    "a node that closes gives everything back": Rule(
        "core/session.py", "            self._give_all_back()\n            with", "            with"
    ),
    # Mistakes that lived through every test of before
    "a deadline is looked at before there is a subscription": Rule(
        "core/session.py", "if statements and self._deadlines is None:", "if statements and self._deadlines is None and self._subscribed:"
    ),
    "whoever is first in the queue now is told": Rule(
        "promote.lua", "  scope.told = first or ''\n", "  if scope.told == '' then scope.told = first or '' end\n"
    ),
    "a shorter wait replaces a longer one": Rule(
        "core/session.py", "        if timer := self._retry_timers.pop(account, None):\n            timer.cancel()\n        wait", "        if account in self._retry_timers:\n            return\n        wait"
    ),
    "nothing stays in hand at a full site": Rule(
        "core/account.py", "and now < turn_end and not self.is_at_limit:", "and now < turn_end:"
    ),
}

OF_SCRIPTS = {
    **dict.fromkeys(("sync.lua", "begin_epoch.lua"), ""),
    **dict.fromkeys(
        ("promote.lua", "scope.lua", "limit.lua", "clock.lua", "feedback.lua"), "shared/"
    ),
}


@contextmanager
def switched_off(rule: Rule) -> Iterator[None]:
    """The code without a rule, in this process."""
    if rule.file == "run":
        undo = _each_node_its_own_order()
    elif rule.file.endswith(".lua"):
        undo = _change_script(OF_SCRIPTS[rule.file] + rule.file.removesuffix(".lua"), rule)
    else:
        undo = _change_module(rule)
    try:
        yield
    finally:
        for thing, name, value in undo:
            setattr(thing, name, value)
        scripts.script.cache_clear()


Undo = list[tuple[Any, str, Any]]


def _each_node_its_own_order() -> Undo:
    module = importlib.import_module("tests.simulation.run")
    undo = [(module, "order_of", module.order_of)]
    module.order_of = lambda scope: module.chance.fraction()
    return undo


def _change_script(file: str, rule: Rule) -> Undo:
    source_of = scripts.source_of
    text = source_of(file)
    assert text.count(rule.says) == 1, f"{file} does not say once: {rule.says}"
    changed = text.replace(rule.says, rule.instead)
    scripts.source_of = lambda name: changed if name == file else source_of(name)
    scripts.script.cache_clear()
    return [(scripts, "source_of", source_of)]


def _change_module(rule: Rule) -> Undo:
    """Give the functions of a module, and its constants everywhere, what they are without a rule."""
    name = "semaphore_middleware." + rule.file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    text = inspect.getsource(module)
    assert text.count(rule.says) == 1, f"{rule.file} does not say once: {rule.says}"
    changed = ModuleType(name)
    exec(compile(text.replace(rule.says, rule.instead), rule.file, "exec"), vars(changed))
    undo: Undo = []
    for known, other in list(vars(changed).items()):
        own = getattr(module, known, None)
        if isinstance(own, float) and own != other:
            for user in list(sys.modules.values()):
                if getattr(user, known, None) is own and user.__name__.startswith("semaphore_"):
                    undo.append((user, known, own))
                    setattr(user, known, other)
        elif getattr(own, "__module__", None) == name:
            for function, instead in _functions(own, other):
                undo.append((function, "__code__", function.__code__))
                function.__code__ = instead.__code__
    return undo


def _functions(own: Any, other: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    if isinstance(own, type):
        for name, part in list(vars(own).items()):
            yield from _functions(part, vars(other).get(name))
    elif isinstance(own, property):
        yield from _functions(own.fget, other.fget)
    elif isinstance(own, FunctionType) and own.__code__ != other.__code__:
        yield own, other


def convicts(seed: int, rule: Rule) -> str | None:
    """What the judge says of a seed's run without a rule."""
    with switched_off(rule):
        try:
            result = run(plan_for(seed))
        except Exception as error:  # a loop that spins, an error that nobody catches
            return repr(error)
    return result.violations[0].split(" ", 1)[1] if result.violations else None


def main() -> None:
    """Print of each rule how many seeds see that it is off, the first of them, and as what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with multiprocessing.Pool(options.processes) as pool:
        for name, rule in RULES.items():
            if options.only in name:
                seeds = range(1, options.seeds + 1)
                found = pool.map(partial(convicts, rule=rule), seeds, chunksize=10)
                as_what = Counter(text.split()[0] for text in found if text)
                first = next((seed for seed, text in zip(seeds, found, strict=True) if text), None)
                sys.stdout.write(f"| {name} | {sum(as_what.values())} | {first} | {dict(as_what)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
