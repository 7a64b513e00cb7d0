"""What mutants need not be seen is said beside them."""

from __future__ import annotations

from lab.markers import places
from lab.mutants.generate import ACCEPTED, mutants


def test_each_comment_accepts_a_mutant_of_its_line() -> None:
    comments = {*places(ACCEPTED)}
    assert comments
    assert comments <= {one.accepted for one in mutants({place.file for place in comments})}
