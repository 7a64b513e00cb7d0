"""Examples in the pages that are no commands: settings are read, programs run, YAML is parsed."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import pytest
import yaml
from scrapy.settings import Settings

import semaphore_middleware
from semaphore_middleware import FairSemaphore
from semaphore_middleware.redis import tls
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from tests.docs.pages import Block, blocks
from tests.support.nodes import Loop
from tests.support.servers import RedisServer

PROGRAM_TIMEOUT_S = 30.0
PYTHON = [block for block in blocks() if block.kind == "python"]


def is_program(block: Block) -> bool:
    """Whether it awaits something, other than in a function for a project."""
    if "async def " in block.text:
        return False
    return any(word in block.text for word in ("await ", "async with "))


def name_of(block: Block) -> str:
    return block.name


@pytest.mark.parametrize("block", [b for b in PYTHON if not is_program(b)], ids=name_of)
def test_settings_are_allowed(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "check_options", lambda *_: None)  # the files are not here
    if "scrapy_playwright" in block.text:
        pytest.skip("run by tests/companions")
    names: dict[str, Any] = {}
    exec(block.text, names)  # our own pages
    given = {name: value for name, value in names.items() if name.isupper()}
    read = SemaphoreSettings.read(Settings(given))
    FairSemaphore(read.url, url_from=read.url_from)
    # Nothing is set that is not read.
    heard = {"ADDONS", "REDIS_URL", "CONCURRENT_REQUESTS_PER_DOMAIN", "DOWNLOAD_DELAY"}
    heard |= {"AUTOTHROTTLE_ENABLED", "SCHEDULER", "DOWNLOAD_HANDLERS", "PLAYWRIGHT_ABORT_REQUEST"}
    assert {name for name in given if not name.startswith("SEMAPHORE_")} <= heard
    for host in given.get("SEMAPHORE_LIMITS", {}):
        assert read.limits.of(host.replace("*", "www")) != read.limits.default


@pytest.mark.parametrize("block", [b for b in PYTHON if is_program(b)], ids=name_of)
def test_programs_run(block: Block, server: RedisServer) -> None:
    assert "redis://localhost" in block.text
    text = block.text.replace("redis://localhost", server.url)
    names: dict[str, Any] = dict(vars(semaphore_middleware))
    exec(f"async def program():\n{textwrap.indent(text, '    ')}", names)  # our own pages
    loop = Loop()
    try:
        loop.run(asyncio.wait_for(names["program"](), PROGRAM_TIMEOUT_S))
    finally:
        loop.close()
    assert server.members() == {}


@pytest.mark.parametrize("block", [b for b in blocks() if b.kind == "yaml"], ids=name_of)
def test_yaml_is_parsed(block: Block) -> None:
    documents = list(yaml.safe_load_all(block.text))
    assert documents
    assert all(isinstance(document, dict) for document in documents)
