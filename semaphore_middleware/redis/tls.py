"""TLS: the options of a URL, checked one by one, and what is wrong when a server is not reached."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from semaphore_middleware.errors import SettingsError

OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
SECRET = ("ssl_ca_data", "ssl_password")  # not shown: a secret, or too long
CERTIFICATE_REQUIREMENTS = ("none", "optional", "required")
NAME_MISMATCHES = (62, 63, 64)  # OpenSSL's codes: X509_V_ERR_HOSTNAME_MISMATCH and its like
CLIENT_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Try each option of a URL. Reads the files that they name.

    Raises `SettingsError`, which names the option, and its file.
    """
    context = ssl.create_default_context()

    def refuse(problem: str, *names: str) -> SettingsError:
        return SettingsError(f"{where}: {_shown(options, *names)}: {problem}")

    def attempt(work: Callable[[], object], *names: str) -> None:
        try:
            work()
        except (OSError, ValueError, TypeError) as error:
            raise refuse(_reason(error), *names) from None

    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in CERTIFICATE_REQUIREMENTS:
        allowed = ", ".join(CERTIFICATE_REQUIREMENTS)
        raise refuse(f"allowed is any of {allowed}", "ssl_cert_reqs")
    if file := options.get("ssl_ca_certs"):
        attempt(lambda: context.load_verify_locations(cafile=file), "ssl_ca_certs")
    if directory := options.get("ssl_ca_path"):  # OpenSSL says nothing of one that is not there
        attempt(lambda: list(Path(directory).iterdir()), "ssl_ca_path")
    if data := options.get("ssl_ca_data"):
        attempt(lambda: context.load_verify_locations(cadata=data), "ssl_ca_data")
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if key and not certificate:
        raise refuse("needs an ssl_certfile as well", "ssl_keyfile")
    for name in ("ssl_certfile", "ssl_keyfile"):  # OpenSSL does not say which one is not there
        if name in options:
            attempt(partial(_open, options[name]), name)
    if certificate:
        # With an empty password OpenSSL does not ask the terminal for one.
        password = options.get("ssl_password", "")
        attempt(
            lambda: context.load_cert_chain(certificate, key, password),
            *("ssl_certfile", "ssl_keyfile"),
        )
    if options.get("ssl_min_version", 772) not in list(ssl.TLSVersion):
        raise refuse("allowed is 771 (TLS 1.2) or 772 (TLS 1.3)", "ssl_min_version")
    if ciphers := options.get("ssl_ciphers"):
        attempt(lambda: context.set_ciphers(ciphers), "ssl_ciphers")


def explain(error: ssl.SSLError, host: str, options: Mapping[str, Any]) -> str:
    """Why TLS failed, and which option is about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in NAME_MISMATCHES:
            return (
                f"its TLS certificate is not for {host!r}: write the name that it is for, or "
                "ssl_check_hostname=false"
            )
        authorities = _shown(options, "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
        trusted = authorities or "this system's authorities, as no ssl_ca_certs is given"
        return f"its TLS certificate is not confirmed by {trusted}: {error.verify_message}"
    reason = error.reason or ""
    if "ALERT" in reason and any(alert in reason for alert in CLIENT_CERTIFICATE_ALERTS):
        given = _shown(options, "ssl_certfile")
        if given:
            return f"it does not accept this node's TLS certificate, {given}: {_reason(error)}"
        return (
            "it asks for a TLS certificate of this node: give ssl_certfile and ssl_keyfile "
            f"({_reason(error)})"
        )
    given = _shown(options, *OPTIONS) or "no options given"
    return f"TLS failed: {_reason(error)} ({given})"


async def diagnose(
    host: str, port: int, context: ssl.SSLContext | None, options: Mapping[str, Any]
) -> str | None:
    """Why a server that is there does not answer, if that is about TLS. `context` is what the
    connection uses; None: it does not use TLS.

    A server may find a node's certificate wanting only after the handshake, and what it says then
    is lost if it is sent commands meanwhile. So this one sends none.
    """
    try:
        if context is None:
            if await _speaks_tls(host, port):
                return "it speaks TLS: write rediss:// in place of redis://"
        elif await _answers_without_tls(host, port):
            return "it does not speak TLS: write redis:// in place of rediss://"
        else:
            await _exchange(host, port, b"", context)
    except ssl.SSLError as error:
        if not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return explain(error, host, options)
    except OSError:
        pass
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(OSError):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.close()
        return True
    return False


async def _answers_without_tls(host: str, port: int) -> bool:
    with suppress(OSError):
        return (await _exchange(host, port, b"PING\r\n", None)).startswith((b"+", b"-"))
    return False


async def _exchange(host: str, port: int, command: bytes, context: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(command)
        return await reader.read(1)
    finally:
        writer.close()


def _open(file: str) -> None:
    with Path(file).open("rb"):
        pass


def _shown(options: Mapping[str, Any], *names: str) -> str:
    return ", ".join(
        name if name in SECRET else f"{name}={options[name]}" for name in names if name in options
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        text = str(error.args[-1] if error.args else error)
        return re.sub(r"^\[.*?\] | \(_ssl\.c:\d+\)$", "", text).rstrip(".")
    return error.strerror or str(error)
