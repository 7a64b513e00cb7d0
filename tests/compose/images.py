"""Stand-ins for the images that docker-compose.yml and the Dockerfile name, made from packages.

Where the registry of images cannot be reached, a small system by `debootstrap`, from the mirror
that this machine's apt uses, is tagged as they are. Python is the system's own. The server is the
one of the embedded wheel, of the very version that is named.
"""

from __future__ import annotations

import itertools
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from semaphore_middleware.redis.embedded import find_program
from tests.compose.engine import Engine
from tests.support.paths import REPOSITORY

PACKAGES = "python3,python3-pip,python3-venv,redis-tools"

# As in the pinned image: starts as root, goes on as the user `valkey`.
ENTRYPOINT = """\
#!/bin/sh
set -e
if [ "$1" = valkey-server ] && [ "$(id -u)" = 0 ]; then
    chown -R valkey .
    exec setpriv --reuid=valkey --regid=valkey --clear-groups -- "$0" "$@"
fi
exec "$@"
"""

# There is no network in the build: pip finds what it needs in a directory of the base.
PIP = """\
[global]
no-index = true
find-links = /wheels
"""


def named(file: str, pattern: str) -> str:
    """The one thing that this file names so."""
    (name,) = set(re.findall(pattern, (REPOSITORY / file).read_text(), re.MULTILINE))
    return str(name)


def make(engine: Engine) -> None:
    """All that a crawl needs. Grafana is but a name."""
    root = engine.directory / "root"
    _debootstrap(root)
    shown = _run("chroot", str(root), "python3", "-c", "import sys; print(*sys.version_info[:2])")
    _gather_wheels(root / "wheels", ".".join(shown.split()))
    (root / "etc/pip.conf").write_text(PIP)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    python = engine.directory / "python.tar"
    _run("tar", "--create", "--file", str(python), "--directory", str(root), ".")
    name = named("Dockerfile", r"^FROM (python:\S+)")
    engine.podman("import", "--quiet", "--change", "CMD=python3", str(python), _full(name))
    python.unlink()
    _make_server(engine, _full(name))
    engine.podman("tag", _full(name), _full(named("docker-compose.yml", r"image: (grafana/\S+)")))


def _make_server(engine: Engine, base: str) -> None:
    with tempfile.TemporaryDirectory(dir=engine.directory) as context:
        entrypoint = Path(context, "docker-entrypoint.sh")
        entrypoint.write_text(ENTRYPOINT)
        entrypoint.chmod(0o755)
        shutil.copy(find_program(), Path(context, "valkey-server"))
        _build(
            *(engine, named("docker-compose.yml", r"image: (valkey/\S+)"), context),
            f"FROM {base}\n"
            "RUN groupadd -r -g 999 valkey && useradd -r -g valkey -u 999 valkey"
            " && mkdir /data && chown valkey:valkey /data"
            " && ln -s /usr/bin/redis-cli /usr/local/bin/valkey-cli\n"
            "COPY docker-entrypoint.sh valkey-server /usr/local/bin/\n"
            "WORKDIR /data\n"
            'ENTRYPOINT ["docker-entrypoint.sh"]\n',
        )


def _build(engine: Engine, name: str, context: str, lines: str) -> None:
    Path(context, "Dockerfile").write_text(lines)
    engine.podman("build", "--quiet", "--network=none", "--tag", _full(name), context)


def _full(name: str) -> str:
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"


def _gather_wheels(directory: Path, version: str) -> None:
    """What the Dockerfile's pip will ask for, with this machine's settings of pip."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--dest", str(directory)]
    only = ["--only-binary=:all:", "--python-version", version]
    needed = ["--constraint", "constraints.txt", *_requirements()]
    # redis-py's, before Python 3.11.3; pip asks the Python that it runs in.
    _run(*pip, *only, *needed, "async-timeout>=4.0.3")


def _requirements() -> list[str]:
    told = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = told["project"]
    extras = named("Dockerfile", r"'\.\[(\S+)\]'").split(",")
    optional = [project["optional-dependencies"][extra] for extra in extras]
    build = told["build-system"]["requires"]
    return [*build, *project["dependencies"], *itertools.chain.from_iterable(optional)]


def _debootstrap(root: Path) -> None:
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    options = ("--variant=minbase", f"--include={PACKAGES}")
    _run("debootstrap", *options, codename, str(root), _mirror(codename))


def _mirror(codename: str) -> str:
    """Where this machine's apt gets its packages."""
    form = "--format=$(REPO_URI) $(CODENAME) $(COMPONENT)"
    for line in _run("apt-get", "indextargets", form, "Created-By: Packages").splitlines():
        uri, *where = line.split()
        if where == [codename, "main"]:
            return uri
    raise AssertionError(f"apt names no mirror for {codename}")


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
