"""HAProxy before a master and its replicas, as docs/high-availability.md has it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import redis

from tests.docs.pages import block_of
from tests.support.servers import RedisServer

PAGE = "docs/high-availability.md"
USER = ("ACL", "SETUSER", "crawler", "on", ">long-and-random", "+info")  # that its checks use


class HAProxy:
    """Listens at `path`, and leads to the one of the servers that is a master."""

    def __init__(self, path: Path, servers: Sequence[RedisServer]) -> None:
        self.path = path
        self._config = path.with_suffix(".cfg")
        text = block_of(PAGE, "haproxy").replace("10.0.0.4:6379", f"unix@{path}")
        paths = iter([server.path for server in servers])
        self._config.write_text(
            re.sub(r"10\.0\.0\.\d:6379", lambda _: f"unix@{next(paths)}", text) + "\n"
        )

    async def __aenter__(self) -> Self:
        with self.path.with_suffix(".log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                "haproxy", "-f", self._config, stdout=log, stderr=log
            )
        return self

    def leads_to(self, server: RedisServer) -> bool:
        """Whether connections lead there, each of some."""
        return {self._run_id(), self._run_id(), self._run_id()} == {_run_id(server.path)}

    def _run_id(self) -> str | None:
        with suppress(redis.ConnectionError):
            return _run_id(self.path)
        return None

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()


def _run_id(path: Path) -> str:
    """Of the server that this leads to."""
    with redis.Redis(unix_socket_path=str(path)) as client:
        run_id: str = client.info("server")["run_id"]
    return run_id
