"""Jobs: whose share of a site a node's requests count in. A job's name may begin with a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from semaphore_middleware.model.validation import check_number, not_allowed

if TYPE_CHECKING:
    from semaphore_middleware.model.inspection import Member

LONGEST_JOB = 100  # characters
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000.0


def check_job(job: Any, where: str) -> str:
    """Check a job's name, which may be empty. Raises `SettingsError`."""
    is_text = isinstance(job, str) and len(job) <= LONGEST_JOB and job.isprintable()
    if not is_text or job.startswith("/") or job.endswith("/"):
        allowed = f"a text of at most {LONGEST_JOB} printable characters, without '/' at its ends"
        raise not_allowed(job, where, allowed)
    return str(job)


def check_weight(weight: Any, where: str) -> float:
    """Check a job's weight, which may be written as text. Raises `SettingsError`."""
    return check_number(weight, where, least=WEIGHT_MIN, most=WEIGHT_MAX, text=True)


def share_name(job: str) -> str:
    """The name of a weight on the server: of a job in a group, or of a group and all its jobs."""
    return job if "/" in job else f"{job}/"


@dataclass(frozen=True, slots=True)
class JobShare:
    """What a job, or a group of jobs, has of a scope now."""

    job: str
    """Empty: of the nodes without a job."""
    weight: float
    """Of a job in a group: among the jobs of that group."""
    held: int
    """Permits that its nodes hold."""
    waiting: int
    """Requests of its nodes that wait for a permit."""
    nodes: int

    @classmethod
    def of(cls, members: Sequence[Member], set_weights: Mapping[str, float]) -> tuple[Self, ...]:
        """The jobs of these nodes, by name, each group before its jobs; none if all are of one.
        `set_weights` are those that operators have set, by `share_name`.
        """
        by_job: dict[str, list[Member]] = {}
        if len({member.job for member in members}) < 2:
            return ()
        for member in members:
            for name in {member.job, member.job.partition("/")[0]}:
                by_job.setdefault(name, []).append(member)
        return tuple(
            cls(
                job,
                set_weights.get(
                    share_name(job),
                    next((one.weight for one in of_job if one.job == job), 1.0),
                ),
                sum(member.held for member in of_job),
                sum(member.waiting for member in of_job),
                len(of_job),
            )
            for job, of_job in sorted(by_job.items())
        )
