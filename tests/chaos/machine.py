"""What the machine says of a process; and what not every machine has: a clock that can be bent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.servers import BINARY

FAKETIME = sorted(map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")))
BENT = {  # only the time of day: no real clock that is set anew touches the monotonic one
    "LD_PRELOAD": FAKETIME[-1] if FAKETIME else "",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}


def why_no_clocks() -> str:
    """Why clocks cannot be bent here; empty if they can."""
    return "" if FAKETIME else "libfaketime is not installed"


def why_no_server_clock() -> str:
    if os.environ.get(BINARY):
        return f"libfaketime may hang the server that {BINARY} names"
    return why_no_clocks()


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, as after SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def clock_off_by(seconds: float) -> Mapping[str, str]:
    """The environment of a process whose clock is this far off, as long as it runs."""
    return {**BENT, "FAKETIME": f"{seconds:+.3f}"}


class Clock:
    """A clock for processes to start with; `jump` moves it while they run.

    They read it from a file each time, which slows down a process that often asks for the time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.environment = {
            **BENT,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
        }
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """Be this far off the true time, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.rename(self._file)
