"""What the product logs while a run lasts: noted in the run, not shown in the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Handler(logging.Handler):
    def __init__(self, note: Callable[[logging.LogRecord], object]) -> None:
        super().__init__(logging.INFO)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record)


@contextmanager
def logs_noted(note: Callable[[logging.LogRecord], object]) -> Iterator[None]:
    """Give `note` each record of the product, from INFO on, and nobody else."""
    logger = logging.getLogger("semaphore_middleware")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_Handler(note)]
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers = handlers
