"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "semaphore_middleware"
ANNEXES = [
    REPOSITORY / name
    for name in ("shared_crawl", "semaphore_clients", "semaphore_console", "semaphore_report")
]
PACKAGES = [PACKAGE, *ANNEXES]
"""What is published as a wheel."""
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
