"""Host headers under which this process answers, wherever it listens."""

from __future__ import annotations

import socket

import pytest

from semaphore_middleware.telemetry.own_names import OwnNames

MACHINE, FULL_NAME = "crawler-1", "crawler-1.prod.example.com"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: MACHINE)
    monkeypatch.setattr(socket, "getfqdn", lambda: FULL_NAME)


@pytest.mark.parametrize(
    "header",
    [
        *("127.0.0.1:9410", "127.1.2.3", "[::1]:9410", "localhost", "LOCALHOST.:1"),
        *(MACHINE, f"{MACHINE.upper()}:9410"),  # some machines have their name in the hosts file
    ],
)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_this_machine_s_names_are_right(address: str, header: str) -> None:
    assert OwnNames(address).includes(header)


@pytest.mark.parametrize(
    "header",
    [
        *("evil.example", "10.0.0.1", "0.0.0.0:9410", "node:9410", "printer.local", "", None),
        *("127.0.0.1.evil.example", "localhost.evil.example", f"{MACHINE}.evil.example"),
        *("a@localhost", "localhost, evil.example", "localhost/", "[::1", "[localhost]", "\xe9"),
    ],
)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_no_other_is(address: str, header: str | None) -> None:
    assert not OwnNames(address).includes(header)


@pytest.mark.parametrize(
    "header",
    [
        *("172.18.0.3:9410", "10.244.1.7:9410", "[fd00::7]:9410", "127.0.0.1", "localhost:9410"),
        *("node:9410", "my_crawl-node-1:9410", "web.crawls.svc", "n.crawls.svc.cluster.local"),
        *(MACHINE, FULL_NAME, f"{FULL_NAME.upper()}.:9410", "crawler-2.example.internal:9410"),
        None,  # no browser
    ],
)
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5"])
def test_elsewhere_names_that_no_stranger_can_own_are_right(
    address: str, header: str | None
) -> None:
    assert OwnNames(address).includes(header)


@pytest.mark.parametrize(
    "header",
    [
        *(
            "evil.example",
            "evil.com:9410",
            f"{MACHINE}.evil.com",
            "localhost.evil.com",
            "a.internal.com",
        ),
        *(
            "10.0.0.5.evil.com",
            "evil.com,node",
            "node evil.com",
            "evil.com#.local",
            "xinternal.com",
        ),
    ],
)
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5"])
def test_elsewhere_names_of_the_public_dns_are_not(address: str, header: str) -> None:
    assert not OwnNames(address).includes(header)


def test_the_name_to_listen_on_is_right() -> None:
    assert OwnNames("metrics.example.com").includes("Metrics.example.com:9410")
    assert not OwnNames("metrics.example.com").includes("other.example.com:9410")
