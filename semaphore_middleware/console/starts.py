"""The meter of starts: requests started a second, from one survey of the server to the next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from semaphore_middleware.model.inspection import Inspection

WINDOW = 6  # surveys that a scope's starts a second are the mean of


class StartsMeter:
    """Requests started a second, by scope: the mean over the last few surveys."""

    def __init__(self) -> None:
        self._started: Mapping[str, int] = {}
        self._time: float | None = None
        self._new: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=WINDOW)

    def note(self, seen: Iterable[Inspection], now: float) -> Mapping[str, float] | None:
        """The starts a second after a survey; `now` is in seconds of one clock.

        None after the first survey: nobody knows when its starts were. A scope that was not there
        before was idle, so all its starts are new; and so are those of a count that fell, which
        has begun anew after an idle moment.
        """
        before, self._started = self._started, {one.scope: one.started for one in seen}
        last, self._time = self._time, now
        if last is None or now <= last:
            return None
        new: dict[str, int] = {}
        for scope, started in self._started.items():
            known = before.get(scope, 0)
            if count := started - known if started >= known else started:
                new[scope] = count
        self._new.append((now - last, new))
        return self._means()

    def _means(self) -> Mapping[str, float]:
        seconds = sum(passed for passed, _ in self._new)
        sums: Counter[str] = Counter(dict.fromkeys(self._started, 0))
        for _, new in self._new:
            sums.update(new)
        return {scope: round(count / seconds, 2) for scope, count in sums.items()}
