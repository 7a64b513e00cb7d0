"""Credentials that change: a function is asked for them at each connect."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from semaphore_middleware import FairSemaphore, SyncSemaphore
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.link.credentials import ChangingCredentials
from semaphore_middleware.link.location import Server
from semaphore_middleware.operators.admin import Admin
from tests.support.crawls import Log, Patch
from tests.support.nodes import calls_of, eventually, shown
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.times import ENDLESS_S, TIMEOUT_S

FIRST, SECOND = "the-first-secret", "the-second-secret"


class Tokens:
    """A provider whose answers a test sets."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@pytest.fixture(scope="module")
def own() -> Iterator[RedisServer]:
    """A server with a user `app`, whose password is `FIRST`; that of all others is `SECOND`."""
    with RedisServer(tcp_port=free_port()) as server:
        with server.client() as client:
            rights = ("reset", "on", f">{FIRST}", "~*", "&*", "+@all")
            client.execute_command("ACL", "SETUSER", "app", *rights)
            client.execute_command("ACL", "SETUSER", "default", "resetpass", f">{SECOND}")
        yield server


async def as_coroutine() -> tuple[str, str]:
    await asyncio.sleep(0)
    return "app", FIRST


@pytest.mark.parametrize("provider", [Tokens(("app", FIRST)), Tokens([SECOND]), as_coroutine])
async def test_all_connections_use_them(own: RedisServer, provider: Callable[[], Any]) -> None:
    options: dict[str, Any] = {"credentials": provider, "recovery_wait": 0.0}
    async with FairSemaphore(own.url, **options) as semaphore, semaphore.permit("s", 1):
        assert (await semaphore.admin.inspect("s")).held == 1
    with SyncSemaphore(own.url, **options) as of_threads, of_threads.permit("s", 1):
        pass
    async with Admin(own.url, lease=ENDLESS_S, credentials=provider) as admin:
        await admin.rules()


async def test_the_user_of_the_url_has_the_password(own: RedisServer) -> None:
    url = f"redis://app@127.0.0.1:{own.tcp_port}"
    async with Admin(url, lease=ENDLESS_S, credentials=Tokens(FIRST)) as admin:
        await admin.rules()


async def test_each_connect_asks_and_a_refused_password_asks_once_more(own: RedisServer) -> None:
    tokens = Tokens(("app", "it has expired"), ("app", FIRST))
    async with Admin(own.tcp_url, lease=ENDLESS_S, credentials=tokens) as admin:
        await admin.rules()
        assert tokens.asked == 2
    wrong = Tokens(("app", "wrong"))
    async with Admin(own.tcp_url, lease=ENDLESS_S, credentials=wrong) as admin:
        refused = "does not accept this user name and password, from SEMAPHORE_REDIS_CREDENTIALS$"
        with pytest.raises(ServerRefusedError, match=refused):
            await admin.rules()
    assert wrong.asked == 2


def raises(*_: str) -> str:
    raise LookupError("the token service is away")


def exits() -> None:
    sys.exit(7)


async def is_slow() -> str:
    await asyncio.Event().wait()
    return FIRST


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (raises, "LookupError: the token service is away"),
        (exits, r"RuntimeError: SystemExit\(7\)"),
        (Tokens(None), "TypeError: it returned a NoneType; allowed is a password, or a user name"),
        (Tokens((FIRST, FIRST, FIRST)), "it returned a tuple"),
        (is_slow, "no credentials within 1.6 s from is_slow$"),
        (partial(raises, FIRST), "no credentials from partial: LookupError"),
    ],
)
async def test_an_error_is_a_server_that_cannot_be_reached(
    own: RedisServer, provider: Callable[[], Any], said: str
) -> None:
    with pytest.raises(ServerUnreachableError, match=said) as raised:
        timeout = 2.0 if provider is is_slow else ENDLESS_S
        await Server(own.url, timeout, credentials=provider).connect()
    assert FIRST not in str(raised.value)


class Hanging:
    """A provider that returns nothing until a test lets it."""

    def __init__(self) -> None:
        self.asked_in: list[threading.Thread] = []
        self.may_return = threading.Event()

    def __call__(self) -> str:
        self.asked_in.append(threading.current_thread())
        self.may_return.wait(TIMEOUT_S)
        return FIRST


async def test_a_function_that_hangs_is_left_to_at_most_three_threads_that_keep_no_process() -> (
    None
):
    hanging = Hanging()
    credentials = ChangingCredentials(hanging, None, 0.01)
    for _ in range(3):
        with pytest.raises(RedisConnectionError, match=r"within 0\.01 s"):
            await credentials.get_credentials_async()
    with pytest.raises(RedisConnectionError, match="3 earlier calls have not returned"):
        await credentials.get_credentials_async()
    assert [thread.daemon for thread in hanging.asked_in] == 3 * [True]
    hanging.may_return.set()
    for thread in hanging.asked_in:
        await asyncio.to_thread(thread.join)
    assert await ChangingCredentials(hanging, None, TIMEOUT_S).get_credentials_async() == (FIRST,)


async def test_all_who_ask_at_once_share_a_call(monkeypatch: Patch) -> None:
    """Also the thread that renews leases."""
    asked = calls_of(monkeypatch, ChangingCredentials, "_call_in_thread")
    hanging = Hanging()
    ask = ChangingCredentials(hanging, None, TIMEOUT_S).get_credentials_async
    asking = [asyncio.create_task(ask()) for _ in range(2)]
    asking.append(asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(ask()))))
    await eventually(lambda: len(asked) == len(asking))
    hanging.may_return.set()
    assert await asyncio.gather(*asking) == 3 * [(FIRST,)]
    assert len(hanging.asked_in) == 1


async def test_nothing_that_it_returns_is_logged(own: RedisServer, caplog: Log) -> None:
    caplog.set_level("DEBUG")
    tokens = Tokens(("app", SECOND), ("app", FIRST))
    async with FairSemaphore(own.url, credentials=tokens, recovery_wait=0.0):
        pass
    assert FIRST not in caplog.text
    assert SECOND not in caplog.text


async def test_the_master_asks_for_them_and_no_sentinel(
    own: RedisServer,
) -> None:
    with SentinelServer() as sentinel:
        sentinel.watch(own.tcp_port)
        url = f"redis+sentinel://{sentinel.address}/mymaster"
        connection = await Server(url, ENDLESS_S, credentials=Tokens(("app", FIRST))).connect()
        await connection.close()


def test_a_password_in_the_url_is_one_too_many() -> None:
    with pytest.raises(SettingsError, match=r"^the server's URL: it has a password, and"):
        FairSemaphore("redis://:secret@localhost", credentials=Tokens(FIRST))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("credentials", given) for given in (3, "no.such.module", "os.path", FIRST)),
        ("credentials", ("a", FIRST)),
        *(("redis_options", given) for given in ((FIRST,), f'{{"ssl_password": "{FIRST}"')),
        ("url", [f"redis://:{FIRST}@localhost"]),
    ],
)
def test_what_is_not_allowed_is_refused_by_its_type(name: str, given: Any) -> None:
    """A password may be in it."""
    said = rf"^{name} = <{type(given).__name__}, not shown>: .*\ballowed is a "
    with pytest.raises(SettingsError, match=said) as refused:
        FairSemaphore(**{"url": "redis://localhost", name: given})
    assert FIRST not in shown(refused.value)


def test_options_of_tls_are_added_to_the_url() -> None:
    with pytest.raises(SettingsError, match="TLS: No such file or directory"):
        FairSemaphore("rediss://localhost", redis_options={"ssl_ca_certs": "/no/such/file"})
    FairSemaphore("rediss://localhost", redis_options={"ssl_check_hostname": False})
    for value in (ssl.CERT_NONE, None, "CERT_NONE", "none"):
        FairSemaphore("rediss://localhost", redis_options={"ssl_cert_reqs": value})
    FairSemaphore("rediss://localhost", redis_options={"ssl_min_version": ssl.TLSVersion.TLSv1_3})
    with pytest.raises(SettingsError, match="ssl_cert_reqs needs an address that begins with"):
        FairSemaphore("redis://localhost", redis_options={"ssl_cert_reqs": "none"})
    with pytest.raises(SettingsError, match="'db' is not an option of TLS; allowed are"):
        FairSemaphore("redis://localhost", redis_options={"db": 3})
