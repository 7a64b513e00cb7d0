"""The mark of numeric fields on the wire; `core/records.py` packs them."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

T = TypeVar("T")
Wire: TypeAlias = Annotated[T, "on the wire"]
"""A field of this type is on the wire; a field without the mark never is."""
