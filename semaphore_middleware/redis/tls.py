"""The options of TLS in a URL: tried when settings are read, and shown when TLS fails."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import SSLConnection
from redis.exceptions import RedisError

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


def with_version_number(url: str) -> str:
    """The URL with a number in place of the name in `ssl_min_version`, as redis-py takes it.

    Raises `SettingsError` for a name of no version.
    """

    def number(option: re.Match[str]) -> str:
        allowed = [name for name in ssl.TLSVersion.__members__ if name.startswith("TLS")]
        if option[2] not in allowed:
            raise SettingsError(f"{option[0][1:]}: allowed is one of {', '.join(allowed)}")
        return f"{option[1]}{ssl.TLSVersion[option[2]].value}"

    return re.sub(r"([?&]ssl_min_version=)([^&]*)", number, url)


def check_options(options: Mapping[str, Any]) -> None:
    """Try the options of a URL. Reads the files that they name.

    Raises `SettingsError`, with OpenSSL's words and the options.
    """
    given = {name: value for name, value in options.items() if name in OPTIONS}
    try:
        files = (given.get("ssl_certfile"), given.get("ssl_keyfile"))
        if any(files):
            # With an empty password OpenSSL does not ask the terminal for one.
            password = given.get("ssl_password", "")
            ssl.create_default_context().load_cert_chain(*files, password)  # type: ignore[arg-type]
        SSLConnection(**given).ssl_context.get()
    except (OSError, ValueError, TypeError, RedisError) as error:
        raise SettingsError(explain(error, options)) from None


def explain(error: Exception, options: Mapping[str, Any]) -> str:
    """What is wrong with TLS, and the options that may be at fault."""
    text = error.strerror if isinstance(error, OSError) else None
    text = text or str(error.args[-1] if error.args else error)
    text = re.sub(r"^\[.*?\] | \(_ssl\.c:\d+\)$", "", text).rstrip(".")
    shown = [
        name if name in SECRET else f"{name}={options[name]}" for name in OPTIONS if name in options
    ]
    return f"TLS: {text} ({', '.join(shown) or 'no options given'})"
