"""The source of all random numbers; the simulation replaces it with a seeded one."""

from __future__ import annotations

from random import Random, SystemRandom

source: Random = SystemRandom()


def fraction() -> float:
    """A number in [0, 1)."""
    return source.random()


def token(length: int) -> str:
    """A unique name: random bytes of this length, as hexadecimal digits."""
    return source.randbytes(length).hex()
