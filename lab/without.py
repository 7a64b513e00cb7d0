"""`make without`: delete each feature in a copy of the tree, or FEATURE=, and check what is left.

A feature is a row of features.toml: the folders and files that are its own. Besides, each line goes
that ends in the comment `feature: NAME`, with the body that it is the head of; and each block that
begins with such a line of its own and ends with `feature: end`. The copy is installed in an
environment of its own, and must pass lint and the fast tests. Left out are tests that need several
features (tests/together), those of the docs and of what is published, what runs in containers, and
benchmarks, as these describe the whole.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from lab.copies import copy_tree
from tests.support.paths import REPOSITORY

TABLE: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("features.toml").read_text("utf-8")
)
WHOLE = [
    *("tests/together", "tests/docs/test_*.py", "tests/test_package.py"),
    *("lab/benchmarks", "lab/compose", "lab/simulation/test_power.py"),
]
"""What is left out of each copy."""
COPY = REPOSITORY / "build" / "without"
KEPT = (".venv", ".mypy_cache", ".ruff_cache")
"""What the next copy takes over: to make it anew takes longer."""
MARKED = {".py", ".rst", ".toml"}
MARK = r"(?:#|\.\.) feature: "


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.without", description=__doc__)
    parser.add_argument("--feature", choices=["", *TABLE], default="", help="one only; else all")
    given = parser.parse_args().feature
    for feature in [given] if given else TABLE:
        began = time.monotonic()
        check_without(feature)
        sys.stdout.write(f"Without {feature}: {time.monotonic() - began:.0f} s\n")


def check_without(feature: str) -> None:
    """Raises an error if what is left does not pass."""
    COPY.mkdir(parents=True, exist_ok=True)
    # A repository of its own: ruff passes over what one around it ignores.
    subprocess.run(("git", "init", "--quiet"), cwd=COPY, check=True)
    kept = [f"--exclude={name}" for name in KEPT]
    subprocess.run(("git", "clean", "--quiet", "-ffdx", *kept), cwd=COPY, check=True)
    copy_tree(COPY)
    for pattern in (*WHOLE, *TABLE[feature]):
        for path in found(COPY, pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in marked_files(COPY):
        text = path.read_text("utf-8")
        path.write_text(without(text, feature), "utf-8")
    (COPY / ".venv" / "installed").unlink(missing_ok=True)
    write_api = (".venv/bin/python", "-m", "tests.support.public_api")
    for command in (("make", ".venv/installed"), write_api, ("make", "lint", "test")):
        subprocess.run(command, cwd=COPY, check=True)


def found(folder: Path, pattern: str) -> list[Path]:
    """The folders and files below it that a pattern names; there has to be one."""
    paths = [*folder.glob(pattern)]
    assert paths, f"{pattern} is nowhere"
    return paths


def marked_files(folder: Path) -> Iterator[Path]:
    """Those that may have marked rows."""
    for name in ("crawler", "docs", "lab", "semaphore_middleware", "tests"):
        yield from (path for path in (folder / name).rglob("*") if path.suffix in MARKED)
    yield folder / "pyproject.toml"


def without(text: str, feature: str) -> str:
    """The text without what is marked as this feature's: blocks, statements with a body, lines."""
    mark = rf"{MARK}{feature}\n"
    text = re.sub(rf"(?ms)^[ \t]*{mark}.*?feature: end\n\n?", "", text)
    text = re.sub(rf"(?m)^([ \t]*)\S.*:  {mark}(?:\1[ \t].*\n|\n)*", "", text)
    return re.sub(rf"(?m)^.*\S.* {mark}", "", text)


if __name__ == "__main__":
    main()
