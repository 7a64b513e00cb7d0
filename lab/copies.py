"""A copy of the working tree, for what changes or deletes a part of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.paths import REPOSITORY


def copy_tree(folder: Path) -> None:
    """Copy the files that git knows, or does not ignore, into this folder, as they are now."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in names.stdout.rstrip("\0").split("\0"):
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
