"""Host headers that are accepted, wherever this process listens; and who may make changes."""

from __future__ import annotations

import socket

import pytest

from semaphore_middleware import SettingsError
from semaphore_middleware.console.auth import Auth
from tests.support.crawls import Patch

TOKEN = "a-token-of-the-test"
MACHINE, FULL_NAME = "crawler-1", "crawler-1.prod.example.com"
HERE = [
    *("127.0.0.1:9410", "127.1.2.3", "localhost", "LOCALHOST:1", "localhost.:1", "[::1]:9410"),
    *(MACHINE, f"{MACHINE.upper()}:9410"),  # some machines have their name in the hosts file
]
PRIVATE = [
    *("172.18.0.3:9410", "10.244.1.7:9410", "[fd00::7]:9410", "0.0.0.0:9410"),
    *("node:9410", "my_crawl-node-1:9410", "web.crawls.svc", "n.crawls.svc.cluster.local"),
    *("printer.local", "crawler-2.example.internal:9410"),
    *("", None),  # no browser
]
STRANGE = [
    *("evil.example", "evil.com:9410", "localhost.evil.com", f"{MACHINE}.evil.com"),
    *("127.0.0.1.evil.com", "10.0.0.5.evil.com", "a.internal.com", "xinternal.com"),
    *("a@localhost", "localhost, evil.com", "localhost/", "[::1", "[localhost]", "[x]:1", "\xe9"),
    *("evil.com,node", "node evil.com", "evil.com#.local", "evil.com@127.0.0.1.", "\udce9"),
]


@pytest.fixture(autouse=True)
def machine(monkeypatch: Patch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: MACHINE)
    monkeypatch.setattr(socket, "getfqdn", lambda: FULL_NAME)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_this_machine_s_names_are_right_and_no_others(address: str) -> None:
    auth = Auth(address, None)
    assert [header for header in HERE if not auth.may_see(header)] == []
    others = [*PRIVATE, *STRANGE, FULL_NAME]
    assert [header for header in others if auth.may_see(header)] == []


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5"])
def test_elsewhere_names_that_no_stranger_can_own_are_right_too(address: str) -> None:
    auth = Auth(address, None)
    right = [*HERE, *PRIVATE, FULL_NAME, f"{FULL_NAME.upper()}.:9410"]
    assert [header for header in right if not auth.may_see(header)] == []
    assert [header for header in STRANGE if auth.may_see(header)] == []


def test_the_name_to_listen_on_is_right() -> None:
    auth = Auth("metrics.example.com", None)
    assert auth.may_see("Metrics.example.com:9410")
    assert not auth.may_see("other.example.com:9410")


@pytest.mark.parametrize(
    ("authorization", "origin", "allowed"),
    [
        (f"Bearer {TOKEN}", None, True),
        (f"Bearer {TOKEN}", "http://localhost:1", True),
        (f"Bearer {TOKEN}", "https://localhost:1", True),  # behind a proxy with TLS
        *(
            (f"Bearer {TOKEN}", origin, False)
            for origin in ("http://localhost:2", "http://evil.example", "null", "http://[::1", "")
        ),
        *(
            (said, None, False)
            for said in (
                f"Bearer {TOKEN} ",
                f"Bearer {TOKEN[:-1]}",
                "Bearer \udce9",
                TOKEN,
                "",
                None,
            )
        ),
        ("Bearer None", None, False),
    ],
)
def test_the_token_may_change_and_only_from_this_page(
    authorization: str | None, origin: str | None, allowed: bool
) -> None:
    auth, nobody = Auth("127.0.0.1", TOKEN), Auth("127.0.0.1", None)
    assert (auth.refusal(authorization, origin, "localhost:1") is None) is allowed
    assert auth.refusal(authorization, "http://", None)
    assert nobody.refusal(authorization, origin, "localhost:1")
    assert (auth.allows_changes, nobody.allows_changes) == (True, False)


def test_a_page_behind_a_proxy_that_hides_its_host_is_told_so() -> None:
    refusal = Auth("127.0.0.1", TOKEN).refusal(f"Bearer {TOKEN}", "https://a.corp", "localhost:1")
    assert refusal is not None
    assert "'https://a.corp', but the request is for the host 'localhost:1'" in refusal


@pytest.mark.parametrize("token", ["", " ", "a b", "tökén", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="the token: allowed are at least 16"):
        Auth("127.0.0.1", token)
