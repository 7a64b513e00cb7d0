"""TLS: a mistake that waiting does not mend is one line, with OpenSSL's words and the options."""

import inspect
import ssl
from pathlib import Path

import pytest
from redis.asyncio.connection import SSLConnection

from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.link import connection
from tests.support.certificates import Authority, Certificate
from tests.support.nodes import refusal
from tests.support.servers import RedisServer, free_port
from tests.support.times import ENDLESS_S
from tests.support.tls import tls_in_front_of


async def unusable(url: str, lease: float = ENDLESS_S) -> str:
    """The line about a server that refuses us, or ends the connection: that depends on TLS."""
    with pytest.raises((ServerRefusedError, ServerUnreachableError)) as failed:
        await FairSemaphore(url, lease=lease).open(wait=False)
    assert "\n" not in str(failed.value)
    return str(failed.value)


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
    with tls_in_front_of(server, paper.server) as port:
        url = f"rediss://127.0.0.1:{port}"
        line = await refusal(f"{url}?{trusting(paper.other)}")
        assert f"{url}/0: TLS: certificate verify failed: " in line
        assert line.endswith(" (ssl_ca_certs)")
        hint = "(no options given; name an authority of your own by ?ssl_ca_certs=FILE)"
        assert (await refusal(url)).endswith(hint)


async def test_a_certificate_for_another_name(server: RedisServer, paper: Paper) -> None:
    with tls_in_front_of(server, paper.server) as port:
        url = f"rediss://localhost:{port}?{trusting(paper.authority)}"
        line = await refusal(url)
        assert "certificate is not valid for 'localhost'" in line
        assert line.endswith(" (ssl_ca_certs)")
        for unchecked in ("ssl_check_hostname=false", "ssl_cert_reqs=CERT_NONE"):
            async with FairSemaphore(f"{url}&{unchecked}"):
                pass


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_wrong_certificate(server: RedisServer, paper: Paper, newest: ssl.TLSVersion) -> None:
    with tls_in_front_of(server, paper.server, paper.authority, newest) as port:
        url = f"rediss://127.0.0.1:{port}?{trusting(paper.authority)}"
        assert (await unusable(url)).endswith("(ssl_ca_certs)")
        url = f"rediss://127.0.0.1:{port}?{trusting(paper.authority, paper.stranger)}"
        assert (await unusable(url)).endswith("(ssl_ca_certs, ssl_certfile, ssl_keyfile)")


async def test_tls_on_one_side_only(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TLS_TIMEOUT_S", 1.0)
    with RedisServer(tcp_port=free_port()) as server:
        url = f"rediss://127.0.0.1:{server.tcp_port}?{trusting(paper.authority)}"
        assert (await unusable(url, lease=1)).endswith("(ssl_ca_certs)"), "it does not answer"
        with tls_in_front_of(server, paper.server) as port:
            line = await unusable(f"redis://127.0.0.1:{port}")
            assert "; if it uses TLS, write rediss://; if it is a proxy, give" in line


def mistake(options: str) -> str:
    with pytest.raises(SettingsError) as refused:
        FairSemaphore(f"rediss://localhost?{options}", url_from="REDIS_URL")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("ssl_ca_certs=/nowhere/f.pem", "TLS: No such file or directory (ssl_ca_certs)"),
        ("ssl_certfile={own}&ssl_keyfile={other}", "mismatch (ssl_certfile, ssl_keyfile)"),
        ("ssl_keyfile={other}", "certfile should be a valid filesystem path (ssl_keyfile)"),
        ("ssl_cert_reqs=maybe", "maybe (ssl_cert_reqs)"),
        ("ssl_ciphers=none", "TLS: No cipher can be selected (ssl_ciphers)"),
        ("ssl_ca_data=none", "(ssl_ca_data)"),
        ("ssl_min_version=1.2", "=1.2: allowed is one of TLSv1, TLSv1_1, TLSv1_2, TLSv1_3"),
        ("ssl_certfile={locked}&ssl_keyfile={key}", "(ssl_certfile, ssl_keyfile)"),
        (
            "ssl_certfile={locked}&ssl_keyfile={key}&ssl_password=t0p-secret",
            "(ssl_certfile, ssl_keyfile, ssl_password)",
        ),
    ],
)
def test_an_option_or_a_file_that_makes_no_sense(paper: Paper, options: str, line: str) -> None:
    locked = paper.authority.issue("locked", password=b"another")  # OpenSSL asks at the terminal
    files = {"own": paper.node.certificate, "other": paper.stranger.key}
    given = options.format(**files, locked=locked.certificate, key=locked.key)
    text = mistake(given)
    assert text.startswith("REDIS_URL: ")
    assert text.endswith(line)
    assert "t0p-secret" not in text


def test_options_that_are_right(paper: Paper) -> None:
    options = "ssl_min_version=TLSv1_3"
    if "ssl_password" in inspect.signature(SSLConnection.__init__).parameters:  # not of redis-py 6
        locked = paper.authority.issue("locked", password=b"t0p-secret")
        options += f"&ssl_certfile={locked.certificate}&ssl_keyfile={locked.key}"
        options += "&ssl_password=t0p-secret"
    FairSemaphore(f"rediss://localhost?{options}")


def test_options_of_tls_without_tls() -> None:
    with pytest.raises(SettingsError, match="ssl_ca_certs needs an address that begins with 'redi"):
        FairSemaphore("redis://localhost?ssl_ca_certs=/etc/ssl/cert.pem")
