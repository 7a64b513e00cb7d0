"""Credentials that change while a node runs: a function is asked for them at each connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

ALLOWED = "a password, or a user name and a password"


class ChangingCredentials(CredentialProvider):
    """Asks `function`; what it returns is never logged.

    A coroutine function is awaited, another one is called in a thread, for `seconds` at most.
    `user` is the name if only a password is returned. An error, or something that is not a
    password, counts as a server that cannot be reached: the next attempt asks again.
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
        """Whether it was awaited: then only the event loop that did so can ask again."""

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The arguments of AUTH."""
        try:
            async with asyncio.timeout(self._seconds):
                self.last = self._checked(await self._ask())
                return self.last
        except TimeoutError:
            raise RedisConnectionError(
                f"no credentials within {self._seconds:g} s from {self._name}"
            ) from None
        except Exception as error:
            raise RedisConnectionError(
                f"no credentials from {self._name}: {type(error).__name__}: {error}"
            ) from None

    async def _ask(self) -> object:
        function = self._function
        is_coroutine = iscoroutinefunction(function)
        returned = function() if is_coroutine else await asyncio.to_thread(function)
        self.is_of_loop = isawaitable(returned)
        return await returned if isawaitable(returned) else returned

    def _checked(self, returned: object) -> tuple[str] | tuple[str, str]:
        match returned:
            case str() if self._user:
                return self._user, returned
            case str(password) | (str(password),):
                return (password,)
            case (str(user), str(password)):
                return user, password
        raise TypeError(f"it returned a {type(returned).__name__}; allowed is {ALLOWED}")
