"""Who may see the page, and who may change limits from it."""

from __future__ import annotations

import pytest

from semaphore_middleware import SettingsError
from semaphore_middleware.console.web.auth import Auth


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8379", "localhost:8379", "localhost", "[::1]:8379", "127.1.2.3", "LOCALHOST:1"],
)
def test_on_loopback_this_machine_s_own_names_may_see(host: str) -> None:
    assert Auth("127.0.0.1", None).may_see(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example:8379", "localhost.evil.example", "10.0.0.1"),
        *("", None, "evil.example@127.0.0.1.", "[::1", "0.0.0.0:8379", "[x]:1", "\udce9"),
    ],
)
def test_on_loopback_no_other_name_may(host: str | None) -> None:
    assert not Auth("127.0.0.1", None).may_see(host)


def test_elsewhere_any_name_may_lead_here_that_no_stranger_can_own() -> None:
    assert Auth("0.0.0.0", None).may_see("crawl.example.internal:8379")
    assert Auth("192.0.2.7", None).may_see(None)
    assert Auth("crawl.example.com", None).may_see("crawl.example.com:8379")
    assert not Auth("0.0.0.0", None).may_see("evil.example:8379")


@pytest.mark.parametrize(
    ("authorization", "origin", "allowed"),
    [
        ("Bearer secret", None, True),
        ("Bearer secret", "http://localhost:1", True),
        ("Bearer secret", "https://localhost:1", True),  # behind a server that speaks TLS
        ("Bearer secret", "http://localhost:2", False),
        ("Bearer secret", "http://evil.example", False),
        ("Bearer secret", "null", False),
        ("Bearer secret", "http://[::1", False),
        ("Bearer secret", "", False),
        ("Bearer secret ", None, False),
        ("Bearer secre", None, False),
        ("Bearer sécret", None, False),
        ("Bearer \udce9", None, False),
        ("secret", None, False),
        ("Bearer ", None, False),
        (None, None, False),
    ],
)
def test_the_token_may_change_and_only_from_this_page(
    authorization: str | None, origin: str | None, allowed: bool
) -> None:
    assert Auth("127.0.0.1", "secret").may_change(authorization, origin, "localhost:1") is allowed


@pytest.mark.parametrize("said", [None, "", "Bearer ", "Bearer None", "None"])
def test_without_a_token_nobody_may_change_anything(said: str | None) -> None:
    auth = Auth("127.0.0.1", None)
    assert not auth.allows_changes
    assert not auth.may_change(said, None, "localhost:1")


@pytest.mark.parametrize("token", ["", " ", "a b", "tökén", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="the token: allowed are"):
        Auth("127.0.0.1", token)
