"""What policies have found, as replies have it."""

from collections.abc import Sequence
from typing import TypeVar

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.politeness import NO_FINDINGS

F = TypeVar("F", bound=Finding)


def found_by(kind: type[F], reply: Reply) -> F:
    """A policy's part of a reply."""
    (found,) = (each for each in reply.findings if isinstance(each, kind))
    return found


def findings(finding: Finding) -> Sequence[Finding]:
    """Of all policies: the others have found nothing."""
    return tuple(finding if type(each) is type(finding) else each for each in NO_FINDINGS)
