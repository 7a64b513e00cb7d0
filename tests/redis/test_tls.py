"""TLS: what cannot get better by waiting is one line, which names the option and its file."""

from __future__ import annotations

import inspect
import ssl
from pathlib import Path

import pytest
from redis.asyncio.connection import SSLConnection

from semaphore_middleware import (
    FairSemaphore,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
)
from tests.support.certificates import Authority, Certificate
from tests.support.nodes import refusal
from tests.support.servers import RedisServer, free_port
from tests.support.tls import tls_in_front_of


async def unusable(url: str) -> str:
    """What is said of a server that refuses us or ends the connection, by the version of TLS."""
    with pytest.raises((ServerRefusedError, ServerUnreachableError)) as told:
        await FairSemaphore(url, lease=3).open(wait=False)
    return str(told.value)


class Paper:
    """All certificates that a test may need."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "authority")
        self.other = Authority(directory, "other")
        self.server, self.node = [self.authority.issue(name) for name in ("server", "node")]
        self.stranger = self.other.issue("stranger")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Paper:
    return Paper(tmp_path_factory.mktemp("certificates"))


def trusting(authority: Authority, certificate: Certificate | None = None) -> str:
    """The options of a URL."""
    options = f"ssl_ca_certs={authority.certificate}"
    if certificate is None:
        return options
    return f"{options}&ssl_certfile={certificate.certificate}&ssl_keyfile={certificate.key}"


async def test_both_sides_prove_who_they_are(server: RedisServer, paper: Paper) -> None:
    with tls_in_front_of(server, paper.server, paper.authority) as port:
        url = f"rediss://127.0.0.1:{port}?{trusting(paper.authority, paper.node)}"
        async with FairSemaphore(url) as semaphore, semaphore.permit("s", 1):
            pass


async def test_a_certificate_that_nobody_confirms(server: RedisServer, paper: Paper) -> None:
    old = paper.authority.issue("old", has_expired=True)
    file, other = paper.authority.certificate, paper.other.certificate
    with tls_in_front_of(server, paper.server) as port, tls_in_front_of(server, old) as old_port:
        url = f"rediss://127.0.0.1:{port}"
        line = await refusal(f"{url}?{trusting(paper.other)}")
        assert f"{url}/0: TLS: certificate verify failed: " in line
        assert line.endswith(f" (ssl_ca_certs={other})")
        line = await refusal(url)
        assert line.endswith(" (no options given)")
        line = await refusal(f"rediss://127.0.0.1:{old_port}?{trusting(paper.authority)}")
        assert line.endswith(f": certificate has expired (ssl_ca_certs={file})")


async def test_a_certificate_for_another_name(server: RedisServer, paper: Paper) -> None:
    with tls_in_front_of(server, paper.server) as port:
        url = f"rediss://localhost:{port}?{trusting(paper.authority)}"
        line = await refusal(url)
        assert "certificate is not valid for 'localhost'" in line
        async with FairSemaphore(f"{url}&ssl_check_hostname=false"):
            pass


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_asks_for_a_certificate(
    server: RedisServer, paper: Paper, newest: ssl.TLSVersion
) -> None:
    with tls_in_front_of(server, paper.server, paper.authority, newest) as port:
        for options in (trusting(paper.authority), trusting(paper.authority, paper.stranger)):
            url = f"rediss://127.0.0.1:{port}?{options}"
            said = await unusable(url)
            assert "TLS: " in said
            assert said.endswith(f" ({options.replace('&', ', ')})")


async def test_tls_on_one_side_only(paper: Paper) -> None:
    with RedisServer(tcp_port=free_port()) as server:
        url = f"rediss://127.0.0.1:{server.tcp_port}?{trusting(paper.authority)}"
        assert "TLS: " in await unusable(url)
        with tls_in_front_of(server, paper.server) as port:
            assert "; if it speaks TLS, write red" in await unusable(f"redis://127.0.0.1:{port}")


def mistake(options: str) -> str:
    with pytest.raises(SettingsError) as refused:
        FairSemaphore(f"rediss://localhost?{options}", url_from="REDIS_URL")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("ssl_ca_certs=/nowhere/f.pem", "No such file or directory ({given})"),
        ("ssl_certfile=/nowhere/f.pem", "No such file or directory ({given})"),
        ("ssl_certfile={key}", "({given})"),
        ("ssl_certfile={own}&ssl_keyfile={other}", "key values mismatch ({given})"),
        ("ssl_keyfile={key}", "certfile should be a valid filesystem path ({given})"),
        ("ssl_cert_reqs=maybe", "maybe ({given})"),
        ("ssl_ciphers=none", "No cipher can be selected ({given})"),
        ("ssl_ca_data=none", "(ssl_ca_data)"),
    ],
)
def test_an_option_or_a_file_that_makes_no_sense(paper: Paper, options: str, line: str) -> None:
    files = {"key": paper.node.key, "own": paper.node.certificate, "other": paper.stranger.key}
    options = options.format(**files)
    said = mistake(options)
    assert said.startswith("REDIS_URL: TLS: ")
    assert said.endswith(line.format(given=options.replace("&", ", ")))


def test_the_oldest_version_of_tls() -> None:
    allowed = "allowed is one of TLSv1, TLSv1_1, TLSv1_2, TLSv1_3"
    assert mistake("ssl_min_version=1.2") == f"REDIS_URL: ssl_min_version=1.2: {allowed}"
    FairSemaphore("rediss://localhost?ssl_min_version=TLSv1_3")


def test_a_key_with_a_password(paper: Paper) -> None:
    """OpenSSL would ask for it at the terminal."""
    locked = paper.authority.issue("locked", password=b"t0p-secret")
    files = f"ssl_certfile={locked.certificate}&ssl_keyfile={locked.key}"
    for options in (files, f"{files}&ssl_password=t0p-secretive"):
        line = mistake(options)
        assert f"ssl_keyfile={locked.key}" in line
        assert "t0p-secret" not in line
    url = f"rediss://localhost?{files}&ssl_password=t0p-secret"
    if "ssl_password" in inspect.signature(SSLConnection.__init__).parameters:
        FairSemaphore(url)
    else:  # an older redis-py
        with pytest.raises(SettingsError, match="unexpected keyword argument 'ssl_password'"):
            FairSemaphore(url)


def test_options_of_tls_without_tls() -> None:
    with pytest.raises(SettingsError, match="ssl_ca_certs needs an address that begins with 'redi"):
        FairSemaphore("redis://localhost?ssl_ca_certs=/etc/ssl/cert.pem")
