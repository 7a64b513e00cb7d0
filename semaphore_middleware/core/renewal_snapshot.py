"""What an event loop and its keeper tell each other, by one assignment each. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from semaphore_middleware.core.protocol import Statement


class Handover:
    """What a node has sent last, for its keeper to send again; and the deadlines that it moves."""

    def __init__(self) -> None:
        # The epoch; and by scope the statements, and how many permits are granted there, as known.
        self._sent: tuple[bytes, dict[str, tuple[Sequence[Statement], int]]] = (b"", {})
        self.kept: Mapping[str, tuple[int, float]] = {}
        """By scope: the term and the deadline of what the keeper has renewed last."""

    # On the loop --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: bytes) -> None:
        """Nothing that was sent before counts in it."""
        self._sent = epoch, {}

    def note_sent(self, scope: str, statements: Sequence[Statement]) -> None:
        """These are sent now; the last one has the present counts."""
        self._sent[1][scope] = statements, statements[-1].believed

    def note_granted(self, scope: str, granted: int) -> None:
        """So many permits are granted under the term of what was sent last."""
        sent = self._sent[1]
        if scope in sent:
            sent[scope] = sent[scope][0], granted  # rule 30: granted since

    def forget(self, scope: str) -> None:
        """Nothing is held there."""
        self._sent[1].pop(scope, None)

    def kept_until(self, scope: str, term: int) -> float:
        """The deadline to which the keeper has moved the lease's, if it has."""
        kept_term, deadline = self.kept.get(scope, (0, 0.0))
        return deadline if kept_term == term else -math.inf

    # In the keeper's thread ---------------------------------------------------------------------

    def to_repeat(self) -> tuple[bytes, list[Statement]]:
        """What was sent last where permits are held, and its epoch. It asks for no more than is
        granted, so that none is granted to a node that cannot use it.
        """
        epoch, sent = self._sent
        statements: list[Statement] = []
        for (*earlier, latest), granted in list(sent.values()):
            if granted > latest.returned:
                statements += [replace(one, asked=one.believed, resting=0) for one in earlier]
                # What was granted since then counts as not begun.
                pending = latest.pending + granted - latest.believed
                # rule 30: asks for nothing
                # rule 30: claims
                counts = replace(latest, asked=granted, believed=granted, pending=pending)
                statements.append(replace(counts, resting=0))
        return epoch, statements
