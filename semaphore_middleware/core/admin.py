"""What people see of the server, and what they set there. Seeing changes nothing."""

from __future__ import annotations

from typing import Any

from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.rules import LIMITLESS, Change, Rule
from semaphore_middleware.redis.connection import Link
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import Ask
from semaphore_middleware.redis.store import Store

MOST = 200  # scopes to look at in one round trip
NO_LIMIT = Limit(LIMITLESS)  # to ask with, where the scope's own limit is not to be lowered


class Steering:
    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def inspect(self, link: Link, *scopes: str) -> list[Inspection]:
        replies = await self._store.inspect(link, scopes)
        return [Inspection.read(*pair) for pair in zip(scopes, replies, strict=True)]

    async def survey(self, link: Link) -> list[Inspection]:
        """All scopes that are in use, remembered, or have a rule."""
        names = {rule.name for rule in await self.rules(link) if not rule.is_pattern}
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", self._keys.states, "COUNT", 1000)
            ((cursor, found),) = await self._store.command(link, [scan])
            names.update(map(self._keys.scope_of, found))
            if cursor == b"0":
                break
        ordered = sorted(names)
        seen: list[Inspection] = []
        for start in range(0, len(ordered), MOST):
            seen += await self.inspect(link, *ordered[start : start + MOST])
        return seen

    async def rules(self, link: Link) -> list[Rule]:
        """What operators have set, by name."""
        replies = await self._store.command(link, [("HGETALL", k) for k in self._keys.all_rules])
        rules: dict[str, Rule] = {}
        for reply in replies:
            fields = dict(zip(reply[::2], reply[1::2], strict=True))
            rules.update((rule.name, rule) for rule in Rule.read_all(fields))
        return sorted(rules.values(), key=lambda rule: rule.name)

    async def resume(self, link: Link, name: str, by: str) -> None:
        """Take a pause back, whoever has asked for it."""
        rules = await self.rules(link)
        names = Change.resume(name, by).names
        over = any(
            rule.paused and rule.is_pattern and rule.fits(one)
            for rule in rules
            for one in names
            if one != rule.name
        )
        said_more = any(rule.name in names and rule.says_more_than_paused for rule in rules)
        await self.change(link, Change.resume(name, by, over, said_more))

    async def change(self, link: Link, change: Change) -> None:
        """Change what operators have set, and tell all nodes."""
        commands: list[tuple[Any, ...]] = []
        for name in change.names:
            of_scope = self._keys.of(name)
            keys = self._keys.all_rules if change.is_pattern else [of_scope.rules]
            if change.set:
                commands += [("HSET", key, *change.values(name)) for key in keys]
            if change.unset:
                commands += [("HDEL", key, *change.gone(name)) for key in keys]
            if change.forgive and not change.is_pattern:
                await self._store.forgive(link, name)
            if change.unlearn and not change.is_pattern:
                commands.append(("HDEL", of_scope.state, "learnt"))
        commands.append(("PUBLISH", self._keys.changes, "changed"))
        await self._store.command(link, commands)

    async def evict(self, link: Link, node: str) -> tuple[int, int]:
        """Give back all that a node holds, and its places in line, as it would itself."""
        store = self._store.speaking_as(node)
        permits = places = 0
        asks: list[Ask] = []
        for scope in await self.survey(link):
            waiting = [member.number for member in scope.waiters if member.node == node]
            held = [member.number for member in scope.holders if member.node == node]
            if waiting or held:
                # Places first: else what its holders give back would be handed to itself.
                asks.append(Ask("release", scope.scope, NO_LIMIT, (*waiting, *held)))
                places += len(waiting)
                permits += len(held)
        await store.run(link, asks)
        return permits, places
