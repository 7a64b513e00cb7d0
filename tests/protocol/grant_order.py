"""Whose turn it is, beside nodes that come and go: does a node that waits get its permit?

One permit; one node waits for it all the time, two others come, use it and go. The next permit goes
to the node that was served longest ago. The question is at which place a newcomer begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WAITER = 0
NEWCOMERS = (1, 2)


class Order(NamedTuple):
    """Who holds the permit, and who waits for it."""

    holder: int | None
    queue: tuple[int, ...]  # those served longest ago first


def comes(order: Order, *, newcomers_count_as_served: bool) -> Iterator[Order]:
    for node in NEWCOMERS:
        if node != order.holder and node not in order.queue:
            first, last = (node, *order.queue), (*order.queue, node)
            yield order._replace(queue=last if newcomers_count_as_served else first)


def goes(order: Order) -> Iterator[Order]:
    if order.holder is not None:
        yield order._replace(holder=None)


def is_granted(order: Order) -> Iterator[Order]:
    """A permit is granted, if not to the node that waits."""
    if order.holder is None and order.queue[0] != WAITER:
        yield Order(order.queue[0], order.queue[1:])


def reached_from(start: Order, *, newcomers_count_as_served: bool) -> set[Order]:
    """All states that can come before the waiter's turn."""
    reached = {start}
    todo = [start]
    while todo:
        order = todo.pop()
        following = {
            *comes(order, newcomers_count_as_served=newcomers_count_as_served),
            *goes(order),
            *is_granted(order),
        }
        todo += following - reached
        reached |= following
    return reached


def a_waiter_may_starve(*, newcomers_count_as_served: bool) -> bool:
    """Whether others can be granted a permit again and again, and the waiter never.

    So it is if a state can be reached from one that a grant has led to from there.
    """

    def reached(start: Order) -> set[Order]:
        return reached_from(start, newcomers_count_as_served=newcomers_count_as_served)

    beginning = Order(None, (WAITER,))
    return any(
        order in reached(granted) for order in reached(beginning) for granted in is_granted(order)
    )
