"""`scrapy frontier`: the command. Its verbs are in commands.py."""

from __future__ import annotations

from semaphore_middleware.operators.verbs import VerbCommand

# Scrapy imports this module for each of its own commands, so what verbs need is imported later.


class FrontierCommand(VerbCommand):
    """`scrapy frontier`."""

    name = "frontier"
    group = "semaphore_middleware.frontier_verbs"

    def short_desc(self) -> str:
        return "See the crawls that many nodes share, add to one, end one, put requests back"

    def long_desc(self) -> str:
        return (
            "Shows the crawls that many nodes share: how many nodes take part, how many sites have "
            "queued requests, and how many requests are queued, in flight, or dead letters, which "
            "no node could fetch or read. The server is that of the semaphore."
        )
