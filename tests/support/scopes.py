"""Scopes as they are written down on the server, seen by no node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.records import OF_KEYS
from semaphore_middleware.link.text import encoded

KEYS = Keys("semaphore")

LOOK = """
local function texts_of(packed)
  local values = { cmsgpack.unpack(packed) }
  for i, value in ipairs(values) do
    if type(value) == 'number' then values[i] = string.format('%.17g', value) end
    if type(value) == 'boolean' then values[i] = value and '1' or '0' end
  end
  return values
end

local seen = {}
for _, key in ipairs(KEYS) do
  local fields = redis.call('HGETALL', key)
  for i = 2, #fields, 2 do
    fields[i] = texts_of(fields[i])
  end
  table.insert(seen, fields)
end
return seen
"""
"""Replies the fields of hashes, and the values of the record in each."""

EDIT = """
local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then return end
local values = { cmsgpack.unpack(text) }
for i = 2, #ARGV, 2 do
  values[tonumber(ARGV[i])] = tonumber(ARGV[i + 1])
end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(unpack(values)))
"""
"""Changes numbers of the record in a hash's field, by their places there."""


@dataclass(frozen=True)
class Look:
    """A scope's keys at one moment."""

    fields: Mapping[str, Mapping[str, str]]
    queue: list[str]
    """The nodes that wait."""

    @property
    def state(self) -> Mapping[str, str]:
        """Empty: there is no key."""
        return self.fields.get("state", {})

    @property
    def learned(self) -> Mapping[str, str]:
        """Empty: nothing."""
        return self.fields.get("learned", {})

    @property
    def entries(self) -> dict[str, dict[str, float]]:
        """By node."""
        return {
            field.removeprefix("node:"): {
                name: float(text) for name, text in entry.items() if name != "job"
            }
            for field, entry in sorted(self.fields.items())
            if field.startswith("node:")
        }

    @property
    def held(self) -> dict[str, int]:
        counts = {n: int(a["granted"] - a["returned"]) for n, a in self.entries.items()}
        return {node: count for node, count in counts.items() if count}

    @property
    def waiting(self) -> dict[str, int]:
        counts = {n: int(a["requested"] - a["granted"]) for n, a in self.entries.items()}
        return {node: count for node, count in counts.items() if count > 0}


def look(client: Any, *scopes: str) -> list[Look]:
    keys = [KEYS.of(scope) for scope in scopes]
    seen = client.eval(LOOK, len(keys), *(key for key, _ in keys))
    return [
        Look(
            {
                name_of(field): dict(
                    zip(names_in(name_of(field)), map(name_of, texts), strict=False)
                )
                for field, texts in zip(flat[::2], flat[1::2], strict=True)
            },
            [name_of(member).partition("\0")[0] for member in client.zrange(queue, 0, -1)],
        )
        for flat, (_, queue) in zip(seen, keys, strict=True)
    ]


def edit(client: Any, scope: str, field: str, **values: float) -> None:
    """Change numbers of a scope's "state", of what it has "learned", or of "node:<name>"."""
    names = names_in(field)
    places = [text for name in values for text in (names.index(name) + 1, repr(values[name]))]
    client.eval(EDIT, 1, KEYS.of(scope)[0], encoded(field), *places)


def names_in(field: str) -> Sequence[str]:
    """The names of the record in a field of a scope's hash; none in that of its jobs."""
    kind = field.partition(":")[0].replace("node", "entry")
    return OF_KEYS[kind].names if kind in OF_KEYS else ()


def name_of(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
