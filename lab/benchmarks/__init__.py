"""Every figure of docs/benchmarks.md, each measured against a yardstick in the same run.

`python -m lab.benchmarks` runs them all, one after the other; names pick some. A benchmark is a
module in `cases`, with a function `measure(quick: bool) -> Report`; `quick` makes it small, to see
that it works.
"""

from pkgutil import iter_modules

from lab.benchmarks import cases

NAMES = [module.name for module in iter_modules(cases.__path__)]
