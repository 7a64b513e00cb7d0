"""The Lua scripts as the server gets them, assembled from their files: luacheck reads them.

`python -m tests.support.luacheck FOLDER` writes them to a folder instead: see `make lua`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from semaphore_middleware.core import scripts as core_scripts
from semaphore_middleware.link import scripts
from semaphore_middleware.operators import scripts as operators_scripts
from semaphore_middleware.report import scripts as report_scripts  # feature: report
from semaphore_middleware.shared_crawl import client  # feature: shared_crawl
from tests.support.paths import PACKAGE

LONGEST_LINE = 110
OPTIONS = (
    *("--std", "lua51", "--no-color", "--quiet"),
    *("--read-globals", "redis", "cjson", "cmsgpack", "struct", "KEYS", "ARGV"),
    "--no-max-line-length",  # of lines with records: the files' own lines are looked at below
    # 211: a script has functions that only its neighbours use. 311: a record is read whole.
    # 212: what policies are asked may be of no matter to those that there are.
    *("--ignore", "211", "212/is_first_try", "311"),
)


def assembled() -> dict[str, str]:
    modules = [
        scripts,
        core_scripts,
        operators_scripts,
        report_scripts,  # feature: report
    ]
    known = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, scripts.Script)
    ]
    known += client.SCRIPTS.values()  # feature: shared_crawl
    return {f"{script.package}.{script.name}": script.source for script in known}


def too_long() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.lua")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if len(line) > LONGEST_LINE:
                yield f"{path}:{number}"


def write(folder: Path) -> list[str]:
    """Write each script to a file of its name in this folder. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in assembled().items():
        (folder / f"{name}.lua").write_text(source, "utf-8")
    return sorted(map(str, folder.glob("*.lua")))


def check() -> int:
    for line in too_long():
        sys.stderr.write(f"{line}: longer than {LONGEST_LINE} characters\n")
    if shutil.which("luacheck") is None:
        sys.stderr.write(
            "The Lua scripts were not checked: luacheck is not installed (Debian: lua-check).\n"
        )
        return any(too_long())
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder))
        found = subprocess.run(["luacheck", *OPTIONS, "--", *paths], check=False)
        return found.returncode or any(too_long())


if __name__ == "__main__":
    sys.exit(not write(Path(sys.argv[1])) if sys.argv[1:] else check())
