"""A site's robots.txt, as it was last fetched, and as it is kept on the server."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Self

MAX_BYTES = 500 * 1024
"""How much of a robots.txt is read: RFC 9309 (2.5) asks for at least 500 KiB."""


@dataclass(frozen=True, slots=True)
class RobotsTxt:
    """What a site answered when it was asked for its robots.txt (RFC 9309, 2.3.1)."""

    text: bytes = b""
    """What applies, at most `MAX_BYTES`; nothing, if the site has no robots.txt."""
    status: int = 0
    """Of its response; 0: there was none."""
    problem: str = ""
    """Why the file is undefined: a server's error, or no answer. Empty: it is not."""
    failures: int = 0
    """How often in a row that was so."""

    @classmethod
    def of_body(cls, body: bytes, status: int) -> Self:
        """The file with this body. Of one that is too long, the lines that are whole."""
        if len(body) > MAX_BYTES:
            body = body[:MAX_BYTES]
            # A part of a rule would be another rule: "Allow: /" is not "Allow: /one/page".
            body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
        return cls(body, status)

    def pack(self) -> bytes:
        """The bytes that the server keeps."""
        about = json.dumps([self.status, self.problem, self.failures])
        return about.encode() + b"\n" + zlib.compress(self.text)

    @classmethod
    def unpack(cls, packed: bytes) -> Self | None:
        """Read what the server keeps. None for nothing, and for what is not in this form."""
        about, _, text = packed.partition(b"\n")
        try:
            status, problem, failures = json.loads(about)
            return cls(
                zlib.decompressobj().decompress(text, MAX_BYTES),
                int(status),
                str(problem),
                int(failures),
            )
        except (ValueError, TypeError, zlib.error):
            return None
