"""The versions that this package needs, as its own metadata names them."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

from semaphore_middleware.errors import SemaphoreError

DISTRIBUTION = "scrapy-semaphore"


def check_versions() -> None:
    """Raises `SemaphoreError` if a library is there in a version that this package does not work
    with. An installer sees to that, but it only warns when another package needs another version.
    """
    try:
        needed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # the files alone are on the path
        return
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = metadata.version(requirement.name)
        if not requirement.specifier.contains(version, prereleases=True):
            raise SemaphoreError(
                f"{requirement.name} {version} is installed; {DISTRIBUTION} "
                f"{metadata.version(DISTRIBUTION)} needs {requirement.name} {requirement.specifier}"
            )
