"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "semaphore_middleware"
"""What is published as a wheel."""
SOURCES = sorted(PACKAGE.rglob("*.py"))
