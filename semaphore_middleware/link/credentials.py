"""Credentials that change while a node runs: a function returns them for each connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

ALLOWED = "a password, or a user name and a password"
MOST_THREADS = 3  # with calls that have not returned


class ChangingCredentials(CredentialProvider):
    """Calls `function` for each connection; what it returns is never logged.

    A coroutine function is awaited, any other is called in a thread, for at most `seconds`.
    Connections opened meanwhile, also by the renewal thread, share the call. `user` is the name if
    only a password is returned. An error, or a result that is not a password, counts
    as an unreachable server: the next attempt calls again.
    """

    def __init__(self, function: Callable[[], object], user: str | None, seconds: float) -> None:
        self._function = function
        # Its `repr` may show a password: that of a partial's arguments, or of a method's object.
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._user = user
        self._seconds = seconds
        self.last: tuple[str] | tuple[str, str] = ("",)
        """What was returned last."""
        self.is_of_loop = False
        """True if the result was awaited: then only that event loop can call again."""
        self._lock = threading.Lock()
        self._calls: list[Future[Any]] = []  # in threads: those not done, and the latest
        self._shared: Future[Any] | None = None  # the one that others may join

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The arguments of AUTH."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                self.last = self._checked(await self._ask())
                return self.last
        except (Exception, SystemExit) as error:
            if limit.expired():
                text = f"within {self._seconds:g} s from {self._name}"
            else:
                text = f"from {self._name}: {type(error).__name__}: {error}"
            raise RedisConnectionError(f"no credentials {text}") from None

    async def _ask(self) -> object:
        if iscoroutinefunction(self._function):
            returned = self._function()
        else:
            call = self._call_in_thread()
            try:
                returned = await asyncio.wrap_future(call)
            except asyncio.CancelledError:
                if self._shared is call:
                    self._shared = None  # it may never return
                raise
        self.is_of_loop = isawaitable(returned)
        return await returned if isawaitable(returned) else returned

    def _call_in_thread(self) -> Future[Any]:
        """The call under way, or a new one. It has a daemon thread of its own: a call that hangs
        does not delay the exit of this process or use up the event loop's threads.
        """
        with self._lock:
            self._calls = [call for call in self._calls if not call.done()]
            if self._shared is None or self._shared.done() or self.is_of_loop:
                if len(self._calls) == MOST_THREADS:
                    raise TimeoutError(f"{MOST_THREADS} earlier calls have not returned")
                self._shared = Future()
                self._shared.set_running_or_notify_cancel()  # a waiter cannot cancel it
                self._calls.append(self._shared)
                threading.Thread(target=self._run, args=(self._shared,), daemon=True).start()
            return self._shared

    def _run(self, call: Future[Any]) -> None:
        try:
            call.set_result(self._function())
        except Exception as error:
            call.set_exception(error)
        except BaseException as error:  # such as SystemExit, which is for the main thread
            call.set_exception(RuntimeError(repr(error)))

    def _checked(self, returned: object) -> tuple[str] | tuple[str, str]:
        match returned:
            case str() if self._user:
                return self._user, returned
            case str(password) | (str(password),):
                return (password,)
            case (str(user), str(password)):
                return user, password
        raise TypeError(f"it returned a {type(returned).__name__}; allowed is {ALLOWED}")
