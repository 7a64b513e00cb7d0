"""A scheduler for crawls that many nodes share. Knows nothing of permits."""

from semaphore_middleware.frontier.scheduler import Scheduler

__all__ = ["Scheduler"]
