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
        *(
            ("Bearer secret", origin, False)
            for origin in ("http://localhost:2", "http://evil.example", "null", "http://[::1", "")
        ),
        *(
            (said, None, False)
            for said in ("Bearer secret ", "Bearer secre", "Bearer \udce9", "secret", "", None)
        ),
        ("Bearer None", None, False),
    ],
)
def test_the_token_may_change_and_only_from_this_page(
    authorization: str | None, origin: str | None, allowed: bool
) -> None:
    auth, nobody = Auth("127.0.0.1", "secret"), Auth("127.0.0.1", None)
    assert auth.may_change(authorization, origin, "localhost:1") is allowed
    assert not auth.may_change(authorization, "http://", None)
    assert not nobody.may_change(authorization, origin, "localhost:1")
    assert (auth.allows_changes, nobody.allows_changes) == (True, False)


@pytest.mark.parametrize("token", ["", " ", "a b", "tökén", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="the token: allowed are"):
        Auth("127.0.0.1", token)
