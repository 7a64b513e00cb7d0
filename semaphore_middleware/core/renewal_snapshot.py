"""Lock-free exchange between an event loop and the renewal thread. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from semaphore_middleware.core.protocol import LeaseUpdate


class RenewalSnapshot:
    """What a node has sent last, for the renewal thread to send again; and the deadlines that it
    moves.
    """

    def __init__(self) -> None:
        # The epoch; and by scope the updates, and how many permits are granted there, as known.
        self._sent: tuple[bytes, dict[str, tuple[Sequence[LeaseUpdate], int]]] = (b"", {})
        self.kept: Mapping[str, tuple[int, float]] = {}
        """By scope: the lease id and the deadline of what the renewal thread has renewed last."""

    # On the loop --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: bytes) -> None:
        """Nothing that was sent before counts in it."""
        self._sent = epoch, {}

    def note_sent(self, scope: str, updates: Sequence[LeaseUpdate]) -> None:
        """These are sent now; the last one has the present counts."""
        self._sent[1][scope] = updates, updates[-1].granted_ack

    def note_granted(self, scope: str, granted: int) -> None:
        """So many permits are granted under the lease of what was sent last."""
        sent = self._sent[1]
        if scope in sent:
            sent[scope] = sent[scope][0], granted  # rule 30: granted since

    def forget(self, scope: str) -> None:
        """Nothing is held there."""
        self._sent[1].pop(scope, None)

    def kept_until(self, scope: str, lease_id: int) -> float:
        """The deadline to which the renewal thread has moved the lease's, if it has."""
        kept_lease_id, deadline = self.kept.get(scope, (0, 0.0))
        return deadline if kept_lease_id == lease_id else -math.inf

    # In the renewal thread --------------------------------------------------------------------

    def to_repeat(self) -> tuple[bytes, list[LeaseUpdate]]:
        """What was sent last where permits are held, and its epoch. It asks for no more than is
        granted, so that none is granted to a node that cannot use it.
        """
        epoch, sent = self._sent
        updates: list[LeaseUpdate] = []
        for (*earlier, latest), granted in list(sent.values()):
            if granted > latest.returned:
                updates += [replace(one, requested=one.granted_ack, suspended=0) for one in earlier]
                # What was granted since then counts as not begun.
                unstarted = latest.unstarted + granted - latest.granted_ack
                # rule 30: asks for nothing
                # rule 30: claims
                counts = replace(
                    latest, requested=granted, granted_ack=granted, unstarted=unstarted
                )
                updates.append(replace(counts, suspended=0))
        return epoch, updates
