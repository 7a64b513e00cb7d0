"""The semaphore for threads: in many of them, in forked processes, and at the end of a process."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Unpack, get_type_hints

import pytest

from semaphore_middleware import ClosedError, FairSemaphore, SettingsError, SyncSemaphore
from semaphore_middleware.core.sync import Options
from semaphore_middleware.errors import AcquireTimeoutError, PermitLostError, ServerRefusedError
from semaphore_middleware.model.options import GivenOptions
from tests.core.test_forks import forked
from tests.support.crawls import Log
from tests.support.servers import RedisServer, wait_until
from tests.support.times import TIMEOUT_S

THREADS = 200


def test_it_takes_what_a_fair_semaphore_takes() -> None:
    theirs = get_type_hints(FairSemaphore.__init__)
    assert theirs.pop("options") == Unpack[GivenOptions]
    theirs |= get_type_hints(GivenOptions)
    assert get_type_hints(Options) | {"url": str | None, "return": type(None)} == theirs


def test_200_threads_never_hold_more_than_the_limit_and_all_get_theirs(server: RedisServer) -> None:
    inside: list[None] = []
    most: list[int] = []

    def work(_: int) -> None:
        with semaphore.permit("s", 4) as permit:
            inside.append(None)
            most.append(len(inside))
            time.sleep(0)
            inside.pop()
        assert not permit.lost

    with SyncSemaphore(server.url, node="n") as semaphore, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(2 * THREADS)))
        assert repr(semaphore).startswith("<SyncSemaphore of <FairSemaphore n-")
        assert "SyncSemaphore" in {thread.name for thread in threading.enumerate()}
    assert (len(most), max(most)) == (2 * THREADS, 4)
    assert server.members() == {}
    assert "SyncSemaphore" not in {thread.name for thread in threading.enumerate()}


def test_a_decorated_function_takes_a_permit_for_each_call(server: RedisServer) -> None:
    held: list[int] = []
    with SyncSemaphore(server.url) as semaphore, ThreadPoolExecutor(5) as pool:

        @semaphore.permit("s", 1)
        def work(number: int) -> int:
            held.append(server.members()["s"][0])
            return number

        assert [*pool.map(work, range(5))] == [*range(5)]
    assert held == 5 * [1]
    assert server.members() == {}


def test_a_thread_waits_no_longer_than_it_says_also_for_the_server(server: RedisServer) -> None:
    with SyncSemaphore(server.url) as semaphore:
        said = r"0\.05 s: the server cannot be reached"
        with server.frozen(), pytest.raises(AcquireTimeoutError, match=said):
            semaphore.permit("s", 1, timeout=0.05).__enter__()
        with (
            semaphore.permit("s", 1),
            pytest.raises(AcquireTimeoutError, match=r"within 0\.05 s \(limit 1\)"),
        ):
            semaphore.permit("s", 1, timeout=0.05).__enter__()
    assert server.members() == {}


def test_what_hinders_the_first_permit_does_not_hinder_the_next(server: RedisServer) -> None:
    with SyncSemaphore(server.url) as semaphore, server.client() as client:
        client.config_set("requirepass", "secret")
        with pytest.raises(SettingsError, match="the limit of 's' = 0: allowed is"):
            semaphore.permit("s", 0).__enter__()
        with pytest.raises(ServerRefusedError, match="password"):
            semaphore.permit("s", 1).__enter__()
        client.config_set("requirepass", "")
        with semaphore.permit("s", {"rate": "9/s"}) as permit:
            assert permit.limit.rate == "9/s"


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_loss_is_raised_at_the_end(
    server: RedisServer, error: type[Exception] | None, caplog: Log
) -> None:
    seen: list[bool] = []
    with (
        SyncSemaphore(server.url) as semaphore,
        pytest.raises(error or PermitLostError) as raised,
        semaphore.permit("s", 1) as permit,
    ):
        lease: Any = permit._lease
        permit._loop.call_soon_threadsafe(lease.lose_all, "was lost")
        wait_until(lambda: permit.lost)
        seen.append(permit.lost)
        if error:
            raise error
    assert seen == [True]
    assert "stopped" not in str(raised.value)
    assert "a request that has begun under it is not aborted." in caplog.text


def test_the_end_gives_back_what_no_thread_works_under(server: RedisServer) -> None:
    semaphore = SyncSemaphore(server.url)
    errors: list[Exception] = []
    may_end = threading.Event()

    def work(limit: int) -> None:
        try:
            with semaphore.permit("s", limit):
                may_end.wait()
        except (ClosedError, PermitLostError) as error:
            errors.append(error)

    holder, waiter = (threading.Thread(target=work, args=(1,)) for _ in range(2))
    holder.start()
    wait_until(lambda: server.members() == {"s": (1, 0)})
    waiter.start()
    wait_until(lambda: server.members() == {"s": (1, 1)})
    closer = threading.Thread(target=semaphore.close)
    closer.start()
    waiter.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [ClosedError]
    assert server.members()["s"][0] == 1, "its thread goes on"
    may_end.set()
    for thread in (holder, closer):
        thread.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [ClosedError, PermitLostError]
    assert server.members() == {}
    with pytest.raises(ClosedError, match="the semaphore is closed"):
        semaphore.permit("s", 1).__enter__()
    semaphore.close()


def test_one_that_is_closed_does_not_stay_in_memory(server: RedisServer) -> None:
    semaphore = SyncSemaphore(server.url)
    with semaphore, semaphore.permit("s", 1):
        pass
    kept = weakref.ref(semaphore)
    del semaphore
    gc.collect()
    assert kept() is None


def test_the_end_does_not_wait_for_a_server_that_does_not_reply(server: RedisServer) -> None:
    semaphore = SyncSemaphore(server.url)
    errors: list[Exception] = []

    def work() -> None:
        try:
            semaphore.permit("s", 1).__enter__()
        except ClosedError as error:
            errors.append(error)

    waiter = threading.Thread(target=work)
    with server.frozen():
        waiter.start()
        wait_until(lambda: semaphore._opening is not None)
        semaphore.close()
        waiter.join(TIMEOUT_S)
    assert len(errors) == 1


def in_child(semaphore: SyncSemaphore, results: Connection) -> None:
    with semaphore.permit("child", 1):
        results.send(repr(semaphore))


def test_a_forked_child_is_a_node_of_its_own(server: RedisServer) -> None:
    with SyncSemaphore(server.url, reuse_window=0) as semaphore:
        with semaphore.permit("s", 1), forked(in_child, semaphore) as heard:
            name = heard().split()[3]
        assert name not in repr(semaphore)
        held = semaphore.permit("s", 1)
        permit = held.__enter__()
        pid = os.fork()
        if not pid:
            try:
                permit.release()
                held.__exit__(None, None, None)  # the end of the parent's `with`
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert server.members() == {"s": (1, 0)}, "it is the parent's"
        held.__exit__(None, None, None)
        with semaphore.permit("s", 1, timeout=TIMEOUT_S):
            pass
    assert server.members() == {}


# At the end of a process ------------------------------------------------------------------------


@contextmanager
def program(server: RedisServer, text: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has `semaphore`, and does this."""
    head = "from semaphore_middleware import SyncSemaphore\nimport sys, threading, time\n"
    head += "from contextlib import suppress\n"
    head += f"semaphore = SyncSemaphore({server.url!r})\n"
    command = [sys.executable, "-c", head + textwrap.dedent(text)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "text",
    [
        "with semaphore.permit('s', 1): sys.exit()",
        "held = semaphore.permit('s', 1); held.__enter__().release()",
        """
        def work():
            with semaphore.permit("s", 1):
                granted.set()
                threading.main_thread().join()

        granted = threading.Event()
        threading.Thread(target=work).start()
        granted.wait()
        """,
        """
        def work():
            threading.main_thread().join()
            for _ in range(2):
                with suppress(RuntimeError), semaphore.permit("s", 1):
                    pass

        threading.Thread(target=work).start()
        """,
    ],
)
def test_nothing_is_held_when_the_interpreter_has_exited(server: RedisServer, text: str) -> None:
    with program(server, text) as process:
        told = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, *told) == (0, "", "")
    assert server.members() == {}


def test_ctrl_c_ends_a_wait_and_leaves_the_queue(server: RedisServer) -> None:
    text = """
    try:
        with semaphore.permit("s", 1):
            print("granted")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    input()
    """
    with SyncSemaphore(server.url) as ours, ours.permit("s", 1):
        with program(server, text) as process:
            wait_until(lambda: server.members() == {"s": (1, 1)})
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert process.stdout.readline() == "interrupted\n"
            wait_until(lambda: server.members() == {"s": (1, 0)})
            _, errors = process.communicate("\n", timeout=TIMEOUT_S)
        assert (process.returncode, errors) == (0, "")
