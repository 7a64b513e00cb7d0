"""Names as they are sent to the server, and numbers as messages show them."""

from __future__ import annotations

UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def encoded(name: str) -> bytes:
    """A name as it is sent to the server."""
    return name.encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """A name as the server has sent it."""
    return name.decode("utf-8", "surrogatepass")


def tag_of(prefix: str) -> bytes:
    """The beginning of all keys with this prefix: it puts them into one slot of a cluster."""
    return b"{%b}" % encoded(prefix)


def digits(number: float) -> str:
    """A number with three digits, never as a power: 0.25, 1, 12.5, 3600."""
    return f"{float(f'{number:.3g}'):g}"


def time_of(seconds: float) -> str:
    """Seconds as text: 50 ms, 0.3 s, 12 s, 3 min, 5 h, 4 d."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
