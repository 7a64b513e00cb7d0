"""Lock-free exchange between an event loop and the renewal thread. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from semaphore_middleware.core.protocol import LeaseUpdate


class RenewalSnapshot:
    """The last updates of a node, for the renewal thread to send again; and the deadlines that the
    thread has moved.
    """

    def __init__(self) -> None:
        # The epoch; by scope the last updates, and how many permits are known to be granted.
        self._sent: tuple[bytes, dict[str, tuple[Sequence[LeaseUpdate], int]]] = (b"", {})
        self.kept: Mapping[str, tuple[int, float]] = {}
        """By scope: the lease id and the deadline of what the renewal thread has renewed last."""

    # On the loop --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: bytes) -> None:
        """Forget the updates of earlier epochs."""
        self._sent = epoch, {}

    def note_sent(self, scope: str, updates: Sequence[LeaseUpdate]) -> None:
        """Note the updates that are sent now; the last one has the present totals."""
        self._sent[1][scope] = updates, updates[-1].granted_ack

    def note_granted(self, scope: str, granted: int) -> None:
        """Note how many permits are granted under the lease of the last updates."""
        sent = self._sent[1]
        if scope in sent:
            sent[scope] = sent[scope][0], granted  # rule 30: granted since

    def forget(self, scope: str) -> None:
        """Forget a scope in which nothing is held."""
        self._sent[1].pop(scope, None)

    def kept_until(self, scope: str, lease_id: int) -> float:
        """The deadline that the renewal thread has set for the lease; minus infinity: none."""
        kept_lease_id, deadline = self.kept.get(scope, (0, 0.0))
        return deadline if kept_lease_id == lease_id else -math.inf

    # In the renewal thread --------------------------------------------------------------------

    def to_repeat(self) -> tuple[bytes, list[LeaseUpdate]]:
        """The epoch, and the last updates of the scopes in which permits are held. They ask for no
        new permit, which a stalled event loop could not use.
        """
        epoch, sent = self._sent
        updates: list[LeaseUpdate] = []
        for (*earlier, latest), granted in list(sent.values()):
            if granted > latest.returned:
                updates += [replace(one, requested=one.granted_ack, suspended=0) for one in earlier]
                # What was granted since then counts as unstarted.
                unstarted = latest.unstarted + granted - latest.granted_ack
                # rule 30: asks for nothing
                # rule 30: claims
                counts = replace(
                    latest, requested=granted, granted_ack=granted, unstarted=unstarted
                )
                updates.append(replace(counts, suspended=0))
        return epoch, updates
