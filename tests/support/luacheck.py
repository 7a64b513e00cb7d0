"""Runs luacheck over the Lua scripts as the server gets them: assembled from their files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from semaphore_middleware.frontier import scripts as frontier
from semaphore_middleware.redis import scripts

OPTIONS = (
    *("--std", "lua51", "--no-color", "--quiet"),
    *("--read-globals", "redis", "cjson", "cmsgpack", "struct", "KEYS", "ARGV"),
    *("--max-line-length", "110", "--max-comment-line-length", "110"),
    *("--ignore", "211"),  # 211: a script has functions that only its neighbours use
)


def assembled() -> dict[str, str]:
    of_semaphore = {name: scripts.script(name) for name in scripts.SCRIPTS}
    return of_semaphore | {
        f"frontier_{name}": frontier.script(name) for name in (*frontier.SCRIPTS, "try_rights")
    }


def main() -> int:
    if shutil.which("luacheck") is None:
        sys.stderr.write(
            "The Lua scripts were not checked: luacheck is not installed (Debian: lua-check).\n"
        )
        return 0
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for name, source in assembled().items():
            path = Path(directory) / f"{name}.lua"
            path.write_text(source, "utf-8")
            paths.append(str(path))
        return subprocess.run(["luacheck", *OPTIONS, "--", *paths], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
