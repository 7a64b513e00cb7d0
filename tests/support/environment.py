"""The environment of the tests: the same on a terminal, in the background, and in CI."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

HEEDED = re.compile(
    "(semaphore|scrapy|crawl|redis|xdg|lc)_.*|.*_proxy|(no_|force_|cli|python_)color.*|lines|columns",
    re.IGNORECASE,
)
"""Variables of the user's that the programs under test, or their libraries, would heed."""

KEPT = "SEMAPHORE_TEST_SERVER"


@contextmanager
def clean_environment() -> Iterator[None]:
    """Give this process, and all that it starts, the same variables and signals everywhere."""
    before = dict(os.environ)
    for name in before:
        if HEEDED.fullmatch(name) and name != KEPT:
            del os.environ[name]
    # `nohup` and `&` in a script start programs with SIGINT ignored, which children inherit.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="sem-home-") as home:
            os.environ |= {"HOME": home, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        signal.signal(signal.SIGINT, handler)
