"""The order in which a request takes its scopes: can two requests wait for each other?

Two requests on two nodes want the same two scopes, of one permit each. On one node it is a setting
that names the scope `domain:example.org`, on the other the request's own meta.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from semaphore_middleware.model.hosts import order_of

HOST, DOMAIN = "x.example.org", "domain:example.org"

Taken: TypeAlias = tuple[int, int]  # how many of its scopes each request has


def orders(*, by_name: bool) -> tuple[tuple[str, str], tuple[str, str]]:
    """In which order either request takes its scopes."""
    by_settings = (HOST, DOMAIN)
    users_own_first = (DOMAIN, HOST)  # a name from meta would count as the user's own
    if by_name:
        one, other = sorted(by_settings, key=order_of), sorted(users_own_first, key=order_of)
        return (one[0], one[1]), (other[0], other[1])
    return by_settings, users_own_first


def steps(taken: Taken, *, by_name: bool) -> Iterator[Taken]:
    """A request takes its next scope if nobody has it; one that has both gives them back."""
    order = orders(by_name=by_name)
    held = {name for request in (0, 1) for name in order[request][: taken[request]]}
    for request in (0, 1):
        count = taken[request]
        if count == 2:
            yield with_count(taken, request, 0)
        elif order[request][count] not in held:
            yield with_count(taken, request, count + 1)


def with_count(taken: Taken, request: int, count: int) -> Taken:
    return (count, taken[1]) if request == 0 else (taken[0], count)


def a_deadlock(*, by_name: bool) -> Taken | None:
    """A state that can be reached and not left; None if there is none."""
    reached = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        taken = todo.pop()
        following = list(steps(taken, by_name=by_name))
        if not following:
            return taken
        new = set(following) - reached
        reached |= new
        todo += new
    return None
