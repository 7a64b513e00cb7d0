"""Names of settings that do not exist: each has the right guess, or none."""

import pytest

from semaphore_middleware.model.settings import unknown_names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((name, "SEMAPHORE_LIMITS") for name in ("SEMAPHORE_LIMIT", "SEMPHORE_LIMITS")),
        *((name, "SEMAPHORE_LIMITS") for name in ("SEMAFORE_LIMITS", "SEMAPHORES_LIMITS")),
        *((name, "SEMAPHORE_LEASE") for name in ("EMAPHORE_LEASE", "SEMPAHORE_LEASE")),
        ("SEMAPHORELIMITS", "SEMAPHORE_LIMITS"),
        ("SEMAPHORE_REDIS", "SEMAPHORE_REDIS_URL"),
        ("SEMAPHORE_DELAY", "DOWNLOAD_DELAY"),
        ("SEMPHORE_JITTER", "DOWNLOAD_DELAY_JITTER"),
        ("SEMAPHORE_CONCURENCY", "CONCURRENT_REQUESTS_PER_DOMAIN"),
        ("SEMAPHORE_RATE", "'rate' in SEMAPHORE_LIMITS"),
        ("SEMPHORE_BURST", "'burst' in SEMAPHORE_LIMITS"),
        ("SEMAPHORE_ADAPTIV", "'adaptive' in SEMAPHORE_LIMITS"),
        ("SEMPHORE_TOKEN", "SEMAPHORE_TOKEN"),
    ],
)
def test_the_name_that_was_meant(name: str, meant: str) -> None:
    assert [*unknown_names([name])] == [f"{name}: there is no such setting; did you mean {meant}?"]


def test_names_that_mean_nothing_here() -> None:
    assert [*unknown_names(["SEMAPHORE_XYZ"])] == ["SEMAPHORE_XYZ: there is no such setting"]
    others = ["SEMPHORE_XYZ", "SEMANTIC_LIMITS", "SCHEDULER", "LIMITS", "SEMAPHORE_LEASE", ""]
    assert [*unknown_names(others)] == []
