"""Every figure of docs/benchmarks.md, each measured against a yardstick in the same run.

`python -m benchmarks` runs them all, one after the other; names pick some. A benchmark is a module
with a function `measure(quick: bool) -> Report`; `quick` makes it small, to see that it works.
"""

NAMES = (
    "overhead",
    "scopes",
    "use",
    "freesite",
    "broad",
    "contest",
    "handoff",
    "cluster",
    "frontier",
    "server",
    "growth",
    "scale",
    "fair",
    "delay",
    "refusal",
    "adaptive",
    "classic",
    "peers",
    "pictures",
)
