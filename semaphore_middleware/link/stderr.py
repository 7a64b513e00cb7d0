"""Log lines that reach the user even if logging is off, as with Scrapy's `LOG_ENABLED = False`."""

from __future__ import annotations

import logging
import sys

SILENT = ("NullHandler", "LogCounterHandler")
"""Handlers that show nothing: the latter counts lines for Scrapy's stats."""


def log(logger: logging.Logger, level: int, text: str, *values: object) -> None:
    """Log, and write to the standard error stream if no handler shows errors."""
    logger.log(level, text, *values)
    if sys.stderr is not None and not _shows_errors(logger):
        sys.stderr.write(f"{text % values}\n")


def _shows_errors(logger: logging.Logger) -> bool:
    if not logger.isEnabledFor(logging.ERROR):
        return False
    if not logger.hasHandlers():
        return True  # by Python's handler of last resort
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            if handler.level <= logging.ERROR and type(handler).__name__ not in SILENT:
                return True
        at = at.parent if at.propagate else None
    return False
