"""Who may change limits from the page; who may see it is tested with OwnNames."""

from __future__ import annotations

import pytest

from semaphore_middleware import SettingsError
from semaphore_middleware.console.web.auth import Auth


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
        ("Bearer \udce9", None, False),
        ("secret", None, False),
        ("Bearer ", None, False),
        ("Basic secret", None, False),
        (None, None, False),
    ],
)
def test_the_token_may_change_and_only_from_this_page(
    authorization: str | None, origin: str | None, allowed: bool
) -> None:
    assert Auth("127.0.0.1", "secret").may_change(authorization, origin, "localhost:1") is allowed
    assert not Auth("127.0.0.1", "secret").may_change(authorization, "http://", None)
    assert not Auth("127.0.0.1", None).may_change(authorization, origin, "localhost:1")


@pytest.mark.parametrize("said", [None, "", "Bearer ", "Bearer None", "None"])
def test_without_a_token_nobody_may_change_anything(said: str | None) -> None:
    auth = Auth("127.0.0.1", None)
    assert not auth.allows_changes
    assert not auth.may_change(said, None, "localhost:1")


@pytest.mark.parametrize("token", ["", " ", "a b", "tökén", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="the token: allowed are"):
        Auth("127.0.0.1", token)
