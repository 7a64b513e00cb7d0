"""The rate meter: permits granted a second, from one survey of the server to the next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from semaphore_middleware.model.inspection import Inspection

WINDOW = 6  # surveys that a rate is the mean of


class RateMeter:
    """Permits granted a second, by scope: the mean over the last few surveys."""

    def __init__(self) -> None:
        self._grants: Mapping[str, int] = {}
        self._time: float | None = None
        self._granted: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=WINDOW)

    def note(self, seen: Iterable[Inspection], now: float) -> Mapping[str, float] | None:
        """The rates after a survey; `now` is in seconds of one clock.

        None after the first survey: nobody knows when its grants were. A scope that was not there
        before was idle, so all its grants are new; and so are those of a count that fell, which
        has begun anew after an idle moment.
        """
        before, self._grants = self._grants, {one.scope: one.grants for one in seen}
        last, self._time = self._time, now
        if last is None or now <= last:
            return None
        granted: dict[str, int] = {}
        for scope, grants in self._grants.items():
            known = before.get(scope, 0)
            new = grants - known if grants >= known else grants
            if new:
                granted[scope] = new
        self._granted.append((now - last, granted))
        return self._rates()

    def _rates(self) -> Mapping[str, float]:
        seconds = sum(passed for passed, _ in self._granted)
        sums: Counter[str] = Counter(dict.fromkeys(self._grants, 0))
        for _, granted in self._granted:
            sums.update(granted)
        return {scope: round(count / seconds, 2) for scope, count in sums.items()}
