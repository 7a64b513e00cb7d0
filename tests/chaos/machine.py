"""What the machine says of a process; and what not every machine has: a clock that can be bent, and
networks that can be unplugged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.servers import BINARY

FAKETIME = sorted(map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")))


def why_no_clocks() -> str:
    """Why clocks cannot be bent here; empty if they can."""
    return "" if FAKETIME else "libfaketime is not installed"


def why_no_server_clock() -> str:
    if os.environ.get(BINARY):
        return f"libfaketime may hang the server that {BINARY} names"
    return why_no_clocks()


def why_no_namespaces() -> str:
    if not shutil.which("ip"):
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        return "the kernel has no network namespaces for us"
    return ""


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, as after SIGSTOP."""
    return _stat_of(pid)[0] == "T"


def processor_time(pid: int) -> int:
    """How much of it a process has used so far, in ticks of the kernel's clock."""
    fields = _stat_of(pid)
    return int(fields[11]) + int(fields[12])  # in its own code, and in the kernel's


def _stat_of(pid: int) -> Sequence[str]:
    """The fields of /proc/<pid>/stat (see proc(5)) after the program's name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


BENT = {  # only the time of day: no real clock that is set anew touches the monotonic one
    "LD_PRELOAD": FAKETIME[-1] if FAKETIME else "",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}


def clock_off_by(seconds: float) -> Mapping[str, str]:
    """The environment of a process whose clock is this far off, as long as it runs."""
    return {**BENT, "FAKETIME": f"{seconds:+.3f}"}


class Clock:
    """A clock for processes to start with; `jump` moves it while they run.

    They read it from a file each time, which slows down a process that often asks for the time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """Be this far off the true time, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.rename(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **BENT,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
        }


class Namespace:
    """A network of its own for one node, with one cable to the site and one to the server."""

    def __init__(self, hosts: int) -> None:
        self.name = f"chaos{os.getpid()}"
        tens = os.getpid() % 250
        self._site, self._server = f"10.213.{tens}", f"10.214.{tens}"
        self.site_addresses = [f"{self._site}.{number + 10}" for number in range(hosts)]
        self.server_address = f"{self._server}.1"
        self._cable = f"{self.name}s"

    @property
    def prefix(self) -> Sequence[str]:
        """To put before a command that is to run in there."""
        return ["ip", "netns", "exec", self.name]

    def __enter__(self) -> Self:
        _ip("netns", "add", self.name)
        try:
            self._plug(f"{self.name}w", self._site, [f"{self._site}.1", *self.site_addresses])
            self._plug(self._cable, self._server, [self.server_address])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for cable in (f"{self.name}w", self._cable):
            subprocess.run(["ip", "link", "delete", cable], capture_output=True, check=False)
        _ip("netns", "delete", self.name)

    def _plug(self, cable: str, network: str, addresses: Sequence[str]) -> None:
        inside = f"{cable}i"
        _ip("link", "add", cable, "type", "veth", "peer", "name", inside, "netns", self.name)
        for address in addresses:
            _ip("address", "add", f"{address}/24", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-n", self.name, "address", "add", f"{network}.200/24", "dev", inside)
        _ip("-n", self.name, "link", "set", inside, "up")

    def unplug_the_server(self) -> None:
        _ip("link", "set", self._cable, "down")

    @property
    def is_unplugged(self) -> bool:
        return "state DOWN" in _ip("link", "show", self._cable)

    def plug_in_the_server(self) -> None:
        _ip("link", "set", self._cable, "up")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
