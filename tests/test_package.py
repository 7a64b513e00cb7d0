"""What is published: the wheel, the sources, and what a package index says of them."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.crawler.conftest import HOST, serving, spider_of
from tests.docs.pages import PATHS, Block, blocks, links
from tests.support.paths import PACKAGE, REPOSITORY, SOURCES
from tests.support.servers import RedisServer

TOLD = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
PROJECT, GROUPS = TOLD["project"], TOLD["dependency-groups"]
BESIDE = ("crawler", "docker", "docs", "lab", "tests")
"""Folders that are published as sources, besides the package's own."""
IN_ROOT = {
    *(".ci/constraints-lowest.txt", ".ci/constraints.txt", ".dockerignore"),
    *(".github/CODE_OF_CONDUCT.md", ".github/SECURITY.md", ".gitignore"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "PKG-INFO"),
    *("README.md", "docker-compose.yml", "pyproject.toml", "scrapy.cfg"),
}
MODEL = "tests/model"
KINDS = {".py", ".typed", ".lua", ".html", ".css", ".js", ".svg"}
EXTRAS = {"commands", "embedded", "httpx", "metrics", "otel", "requests"}
TIMEOUT_S = 400.0  # pip downloads


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `make dist` builds."""
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    subprocess.run(build, cwd=REPOSITORY, capture_output=True, check=True)
    return directory


@pytest.fixture
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture
def sources(built: Path) -> Path:
    return next(built.glob("*.tar.gz"))


def files_of(folder: str) -> set[str]:
    return {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(files.read(name))


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        inside = {name for name in files.namelist() if ".dist-info/" not in name}
    assert inside == files_of(PACKAGE.name)
    assert {Path(name).suffix for name in inside} == KINDS
    assert "semaphore_middleware/py.typed" in inside


def test_sources_hold_what_it_takes_to_build_and_test(sources: Path) -> None:
    with tarfile.open(sources) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
    assert inside == IN_ROOT.union(*map(files_of, (*BESIDE, PACKAGE.name)))


# What an index shows ----------------------------------------------------------------------------


def test_metadata_names_what_users_need(wheel: Path) -> None:
    told = metadata(wheel)
    assert set(told.get_all("Provides-Extra", [])) == EXTRAS
    tools = {Requirement(text).name for group in GROUPS.values() for text in group}
    needed = {Requirement(text).name for text in told.get_all("Requires-Dist", [])}
    assert needed
    assert needed & tools == set()


def test_extras_that_are_named_exist() -> None:
    files = [*PATHS, *SOURCES, REPOSITORY / "Makefile", REPOSITORY / "Dockerfile"]
    text = "\n".join(path.read_text("utf-8") for path in files)
    named = {
        extra
        for extras in re.findall(r"(?:\.|scrapy-semaphore)\[([a-z,]+)\]", text)
        for extra in extras.split(",")
    }
    assert named == PROJECT["optional-dependencies"].keys()


def test_links_and_pictures_of_readme_work_without_the_files_beside_it(wheel: Path) -> None:
    repository, version = PROJECT["urls"]["Repository"], PROJECT["version"]
    raw = repository.replace("//github.com/", "//raw.githubusercontent.com/")
    shown = links(str(metadata(wheel).get_payload()))
    relative = [
        link for link in links((REPOSITORY / "README.md").read_text("utf-8")) if ":" not in link
    ]
    assert len(relative) > 10
    for link in relative:
        if link.startswith("docs/pictures/"):
            assert f"{raw}/v{version}/{link}" in shown
        else:
            assert f"{repository}/blob/v{version}/{link}" in shown
    assert [link for link in shown if not link.startswith("https://")] == []


def test_readme_says_how_to_install_what_is_here() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    (text,) = re.findall(r"pip install '([^.].+)'", readme)
    line = Requirement(text)
    assert line.name == PROJECT["name"]
    assert line.extras <= PROJECT["optional-dependencies"].keys()
    assert line.url == f"git+{PROJECT['urls']['Repository']}"
    assert "badge" not in readme, "nothing of it is published yet"


# What it needs ----------------------------------------------------------------------------------


def test_the_lowest_constraints_are_the_floors_of_the_dependencies() -> None:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    floors = {
        (canonicalize_name(needed.name), specifier.version)
        for needed in map(Requirement, sum(extras.values(), PROJECT["dependencies"]))
        for specifier in needed.specifier
        if specifier.operator == ">="
    }
    pins = (REPOSITORY / ".ci/constraints-lowest.txt").read_text("utf-8").splitlines()
    lowest = {
        canonicalize_name(name): Version(version)
        for name, _, version in (pin.partition("==") for pin in pins if "==" in pin)
    }
    for name, floor in floors:  # a floor without a fix release stands for its newest one
        assert lowest[name] in SpecifierSet(f"=={floor}.*"), name


# What is built works ----------------------------------------------------------------------------


@pytest.mark.slow
def test_sources_pass_their_own_tests(sources: Path, tmp_path: Path) -> None:
    with tarfile.open(sources) as files:
        files.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    run_in(root, sys.executable, "-m", "pytest", "-q", MODEL, "tests/docs/test_names.py")


@pytest.mark.slow
def test_wheel_does_what_readme_says(wheel: Path, tmp_path: Path, server: RedisServer) -> None:
    """In an environment with nothing else, and away from this repository."""
    venv.create(tmp_path / "env", with_pip=True)
    python, scrapy = (str(tmp_path / "env/bin" / name) for name in ("python", "scrapy"))
    pip = (python, "-m", "pip", "install", "-q", "-c", str(REPOSITORY / ".ci/constraints.txt"))
    run_in(tmp_path, *pip, str(wheel))

    run_in(tmp_path, scrapy, "startproject", "shop")
    project = tmp_path / "shop"
    settings = project / "shop/settings.py"
    enable, share, limits = [block.text for block in blocks() if in_readme(block, "python")]
    address = "redis://redis.example.internal:6379/0"
    assert address in share
    share, limits = share.replace(address, server.url), limits.replace("example.com", HOST)
    settings.write_text(f"{settings.read_text()}\n{enable}\n{share}\n{limits}")
    with serving(20, 0) as site:
        (project / "shop/spiders/pages.py").write_text(spider_of("pages", site.url))
        log = run_in(project, scrapy, "crawl", "pages")
        assert "'finish_reason': 'finished'" in log
        assert site.record(HOST).missed == []
        assert site.record(HOST).most <= 2
    assert server.members() == {}

    # What needs an extra says so, and the line that it names installs it.
    (line,) = re.findall(
        r"pip install '(.+)'", run_in(project, scrapy, "semaphore", "status", status=2)
    )
    run_in(project, *pip, line)
    shown = run_in(project, scrapy, "semaphore", "status")
    assert "No scope is in use at " in shown or HOST in shown  # its delay counts for some seconds


def in_readme(block: Block, kind: str) -> bool:
    return (block.page, block.kind) == ("README.md", kind)


def run_in(directory: Path, *command: str, status: int = 0) -> str:
    """Run a command that has nothing of this repository, and return what it prints."""
    home = pwd.getpwuid(os.getuid()).pw_dir  # pip's cache is there
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        command,
        cwd=directory,
        env={**environment, "HOME": home},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == status, ran.stdout
    return ran.stdout
