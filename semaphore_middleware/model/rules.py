"""Rules: what operators set on the server, for a scope or a pattern. They win over all settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.model.hosts import encoded, normal_host, parse_name
from semaphore_middleware.model.limits import Limit, parse_parts

LIMITLESS = 2**53  # Lua's numbers count no further


@dataclass(frozen=True, slots=True)
class Rule:
    """What operators have set for a name; None: nothing, so what nodes ask for holds.

    Where several fit a scope, each part is that of the most exact name which sets it.
    """

    name: str
    """A scope; or '*.' and a host, for each host below it."""
    by: str
    """The node that set it last."""
    concurrency: int | None = None
    """Requests at once; 2**53 stands for no limit."""
    delay: float | None = None
    """Seconds from one start to the next."""
    jitter: float | None = None
    """Share of the delay by which it varies either way: 0 to 1."""
    adaptive: bool | None = None
    """Whether the number adapts to the site, up to `concurrency`."""
    paused: bool | None = None
    """True: nothing starts. False: something may, although a pattern that fits is paused."""

    @property
    def is_pattern(self) -> bool:
        """Whether it is for each host below one, not for a scope."""
        return self.name.startswith("*.")

    @property
    def says_more_than_paused(self) -> bool:
        """Whether it sets a part of the limit as well."""
        parts = (self.concurrency, self.delay, self.jitter, self.adaptive)
        return any(part is not None for part in parts)

    def fits(self, scope: str) -> bool:
        """Whether it holds for the scope, unless a more exact one says otherwise."""
        return scope.endswith(self.name[1:]) if self.is_pattern else self.name == scope

    @classmethod
    def read_all(cls, fields: Mapping[bytes, bytes]) -> list[Self]:
        """From the fields of a rules key."""
        parts: dict[str, dict[str, Any]] = {}
        for field, value in fields.items():
            part, _, name = field.decode("utf-8", "surrogatepass").partition(":")
            read = READ.get(part)
            if read is not None:
                parts.setdefault(name, {"by": "", "name": name})[part] = read(value)
        return [cls(**rule) for rule in parts.values()]


READ: Mapping[str, Callable[[bytes], Any]] = {
    "by": lambda value: value.decode("utf-8", "replace"),
    "concurrency": int,
    "delay": lambda value: int(value) / 1000,
    "jitter": float,
    "adaptive": lambda value: value == b"1",
    "paused": lambda value: value == b"1",
}


@dataclass(frozen=True, slots=True)
class Change:
    """Of the rule for one name: what is set, what no longer is, and all else stays as it was."""

    names: tuple[str, ...]
    """Scopes; or '*.' and a host, for each host below it."""
    set: Mapping[str, Any]
    unset: tuple[str, ...] = ()
    forgive: bool = False
    """Whether a pause that the site has asked for is forgotten."""
    unlearn: bool = False
    """Whether all is forgotten that its answers have taught."""

    @classmethod
    def configure(cls, name: str, limit: int | Limit | Mapping[str, Any] | None, by: str) -> Self:
        """Raises `SettingsError`, in the words of `SEMAPHORE_LIMITS`."""
        where = f"the limit of {name!r}"
        if isinstance(limit, Limit):
            parts = {part: getattr(limit, part) for part in READ if hasattr(limit, part)}
        else:
            parts = parse_parts(limit, where)
        if "concurrency" in parts:
            parts["concurrency"] = min(parts["concurrency"] or LIMITLESS, LIMITLESS)
        if "delay" in parts:
            parts["delay"] = math.ceil(1000 * parts["delay"])
        return cls(_names(name), {**parts, "by": by})

    @classmethod
    def pause(cls, name: str, by: str) -> Self:
        return cls(_names(name), {"paused": True, "by": by})

    @classmethod
    def resume(
        cls, name: str, by: str, though_paused: bool = False, said_more: bool = False
    ) -> Self:
        """With `though_paused` a scope goes on although a pattern that it fits is paused. Else that
        is not said, or a pause of the pattern would not hold for it later; and nothing is left of
        a rule that has not `said_more`.
        """
        if though_paused:
            return cls(_names(name), {"paused": False, "by": by}, forgive=True)
        unset = ("paused",) if said_more else ("paused", "by")
        return cls(_names(name), {}, unset=unset, forgive=True)

    @classmethod
    def reset(cls, name: str) -> Self:
        return cls(_names(name), {}, unset=tuple(READ), unlearn=True)

    @property
    def is_pattern(self) -> bool:
        return self.names[0].startswith("*.")

    def values(self, name: str) -> list[Any]:
        """Fields and values, as the scripts read them."""
        values: list[Any] = []
        for part, value in self.set.items():
            values += (_field(part, name), encoded(str(+value if part != "by" else value)))
        return values

    def gone(self, name: str) -> list[bytes]:
        return [_field(part, name) for part in self.unset]


def _field(part: str, name: str) -> bytes:
    return encoded(f"{part}:{name}")


def _names(name: str) -> tuple[str, ...]:
    """A scope as it was written; and, should it be a host, as the URLs of its requests have it."""
    name = parse_name(name, f"the limit of {name!r}")
    return tuple(dict.fromkeys((name, name if name.startswith("*.") else normal_host(name))))
