"""The log names sites that answer 403 to many requests."""

import pytest

from semaphore_middleware.scrapy.forbidden import ForbiddenShares
from tests.support.crawls import Log


def lines(caplog: Log, statuses: list[int], *codes: int) -> list[str]:
    """What the log says after these answers of one host, and as many good ones of another."""
    caplog.clear()
    shares = ForbiddenShares({429, 503, *codes})
    for status in statuses:
        shares.note("a", status)
        shares.note("b", 200)
    return caplog.messages


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        ([403, 403], None),
        ([403] * 9, (3, 3)),
        ([200, 200, 403, 200, 200, 403, 200, 200, 403], (3, 9)),
        ([200, 200, 200, 403] * 300, None),
        ([200] * 6000 + [403] * 60, (15, 45)),
    ],
)
def test_a_site_that_answers_403_to_a_third_is_named_once(
    statuses: list[int], found: tuple[int, int] | None, caplog: Log
) -> None:
    said = lines(caplog, statuses)
    assert len(said) == (found is not None)
    for line in said:
        forbidden, answers = found or (0, 0)
        assert line.startswith(f"a has answered 403 to {forbidden} of the last {answers} requests.")
        assert "SEMAPHORE_BACKOFF_CODES = [403, 429, 503]" in line
    assert lines(caplog, statuses, 403) == []
