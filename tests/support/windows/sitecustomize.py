"""Takes from this package's modules what Python on Windows lacks, and its clock's resolution.

The rest of the process keeps it: Twisted would not start. What Windows does otherwise, in its event
loop, its console and its files, is not seen by this.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import socket
import sys
import time
import types
from typing import Any

NO_MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
LACKS = {
    os: "O_NOFOLLOW fchmod fork geteuid getgid getuid killpg mkfifo register_at_fork setsid uname",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGTSTP SIGUSR1 SIGWINCH",
    socket: "AF_UNIX",
}
TICK_S = 0.015625
"""Of the monotonic clock, before Python 3.13."""


class OnWindows(types.ModuleType):
    """A module without what Windows lacks."""

    def __init__(self, module: types.ModuleType, lacks: str) -> None:
        super().__init__(module.__name__)
        self._module = module
        self._lacks = lacks.split()

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(name)
        return getattr(self._module, name)


def is_ours(name: object) -> bool:
    return str(name).partition(".")[0] == "semaphore_middleware"


on_windows = {module.__name__: OnWindows(module, lacks) for module, lacks in LACKS.items()}
import_ = builtins.__import__
add_signal_handler = asyncio.SelectorEventLoop.add_signal_handler
monotonic = time.monotonic


def import_on_windows(name: str, namespace: Any = None, *args: Any, **kwargs: Any) -> Any:
    if is_ours((namespace or {}).get("__name__")):
        if name in NO_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in on_windows:
            return on_windows[name]
    return import_(name, namespace, *args, **kwargs)


def add_no_signal_handler(loop: Any, *args: Any) -> None:
    if is_ours(sys._getframe(1).f_globals["__name__"]):
        raise NotImplementedError
    add_signal_handler(loop, *args)


setattr(builtins, "__import__", import_on_windows)  # noqa: B010
setattr(asyncio.SelectorEventLoop, "add_signal_handler", add_no_signal_handler)  # noqa: B010
time.monotonic = lambda: monotonic() // TICK_S * TICK_S
