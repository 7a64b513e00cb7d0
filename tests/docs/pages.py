"""The pages for users, split into what can be checked: blocks, commands, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import REPOSITORY

PATHS = [
    *(REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    REPOSITORY / ".github/SECURITY.md",
    *sorted(set((REPOSITORY / "docs").glob("*.md")) - {REPOSITORY / "docs" / "index.md"}),
    REPOSITORY / "docs/examples/README.md",
]
"""All but index.md, which only names the pages of the site that Sphinx builds."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced or indented block of a page."""

    page: str
    kind: str
    """The word after the fence; "indented" if there is no fence."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0]}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and the page that has it."""

    page: str
    line: str

    @property
    def name(self) -> str:
        return f"{self.page}: {self.line}"


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def page(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def blocks() -> list[Block]:
    return [block for path in PATHS for block in blocks_of(name_of(path), path.read_text("utf-8"))]


def blocks_of(name: str, text: str) -> Iterator[Block]:
    kind: str | None = None
    lines: list[str] = []
    before = ""  # the line before: an indented block stands after an empty one
    for line in [*text.splitlines(), "end"]:
        fence = re.fullmatch(r"```(\w*)", line)
        if kind is None and fence:
            kind = fence[1] or "text"
        elif kind not in (None, "indented"):
            if fence:
                yield Block(name, kind or "", "\n".join(lines))
                kind, lines = None, []
            else:
                lines.append(line)
        elif line.startswith("    ") and (kind or not before):
            kind = "indented"
            lines.append(line[4:])
        elif kind and line:
            yield Block(name, kind, "\n".join(lines).strip("\n"))
            kind, lines = (fence[1] or "text") if fence else None, []
        elif kind:
            lines.append("")
        before = line


def prose(text: str) -> str:
    """A page without its blocks."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"(?<=\n\n)(?: {4}.*\n+)+", "", text)


def commands(block: Block) -> Iterator[Command]:
    """The command lines of an indented or a console block."""
    lines = block.text.splitlines()
    if block.kind == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    loop: list[str] = []
    for line in (re.sub(r"\s{2,}# .*$", "", line) for line in lines):
        if line.startswith("for ") or loop:
            loop.append(line)
            if line == "done":
                yield Command(block.page, "\n".join(loop))
                loop = []
        elif line:
            yield Command(block.page, line)
    assert not loop, f"{block.name}: the loop does not end"


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def block_of(page: str, kind: str) -> str:
    """The one block of this kind on a page."""
    (found,) = [found for found in blocks() if (found.page, found.kind) == (page, kind)]
    return found.text
