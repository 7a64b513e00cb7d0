"""Log lines, and events for observers, about scopes and their permits. No I/O.

`scope_lease.py` makes all decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from semaphore_middleware.core.observer import (
    BackoffStarted,
    NodePaused,
    PauseCaused,
    PermitLost,
    UpdateRefused,
    UsageReported,
)
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.link.text import digits
from semaphore_middleware.model.events import Event, Fields
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.politeness import NO_FINDINGS, POLICIES

logger = logging.getLogger(__name__)


class Announcer(Protocol):
    """The part of a node that this module needs."""

    node: str

    @property
    def backoff(self) -> Backoff: ...

    def emit(self, kind: Callable[[*Fields], Event], *fields: *Fields) -> None: ...


def note_reply(node: Announcer, before: Reply | None, reply: Reply) -> None:
    """Announce what the server's reply has changed since the reply before."""
    scope = reply.update.scope
    _note_cause_of_pause(node, reply)
    if reply.limit:  # otherwise the update was refused
        intervals = reply.least_interval or 0.0, reply.interval or 0.0
        node.emit(UsageReported, scope, reply.held, reply.limit, *intervals)
    if reply.backoff is not None:
        _note_backoff(node, reply, reply.backoff)
    findings = before.findings if before else NO_FINDINGS
    for policy, known, found in zip(POLICIES, findings, reply.findings, strict=True):
        if known.shut and not found.shut:
            logger.info("%s is no longer %s.", scope, known.shut)
        elif found.shut_for is not None and reply.backoff is not None and not known.shut:
            assert policy.event is not None, "it can shut a site"
            node.emit(policy.event, scope, found.shut_for)
            logger.warning(
                "%s is %s. %s. Requests fail at once, except for one after each pause, which tries "
                "the site again.",
                scope,
                found.shut,
                found.why,
            )


def _note_cause_of_pause(node: Announcer, reply: Reply) -> None:
    """Announce a pause that this node's feedback has begun, or may have lengthened."""
    feedback = reply.update.feedback
    if not (reply.paused_at and feedback):
        return
    if reply.backoff is not None or feedback.refused or feedback.retry_after:
        pause = reply.paused_at, reply.pause_length
        about = feedback.retry_after, feedback.refused > 0
        node.emit(PauseCaused, reply.update.scope, *pause, *about)


def _note_backoff(node: Announcer, reply: Reply, seconds: float) -> None:
    """Announce a pause of all nodes whose cause this node was the first to report."""
    scope, feedback = reply.update.scope, reply.update.feedback
    node.emit(BackoffStarted, scope, seconds)
    assert feedback is not None, "only feedback begins a backoff"
    asked, most = feedback.retry_after, node.backoff.most
    cut = f" (it asked for {digits(asked)} s; SEMAPHORE_BACKOFF_MAX is {digits(most)} s)"
    logger.info(
        "%s %s: all nodes pause there for %s s%s.",
        scope,
        feedback.cause,
        digits(seconds),
        cut if asked > most else "",
    )


def note_own_pause(node: Announcer, scope: str, seconds: float, failures: int) -> None:
    """Announce a pause of this node alone: the site answers other nodes, or may."""
    node.emit(NodePaused, scope, seconds)
    level = logging.WARNING if seconds == node.backoff.start else logging.INFO
    logger.log(
        level,
        "%s does not respond to the node %s: %d request%s in a row failed here, while other nodes "
        "get answers, or still wait for them. This node alone pauses there for %s s.",
        scope,
        node.node,
        failures,
        "s" if failures > 1 else "",
        digits(seconds),
    )


def note_unread(node: Announcer, reply: Reply) -> None:
    """Announce an update that the server could not read."""
    node.emit(UpdateRefused)
    logger.error("The server could not read %s (a bug: please report it).", reply.update)


def note_loss(node: Announcer, permit: Permit, why: str) -> None:
    """Announce the loss of a permit."""
    node.emit(PermitLost, permit)
    effect = "its request is aborted"
    if not permit._watchers:  # or it has not begun, and will not
        effect = "a request that has begun under it is not aborted"
    logger.warning("A permit for %r %s: %s.", permit.scope, why, effect)
