"""`make foreign-tests`: Scrapy's tests, plain and with the add-on for every crawler, compared.

They are those of the installed version, from its source distribution. What comes out otherwise
with the add-on is listed beside what is expected to. Ends with status 1 if anything else is, too.

With arguments only some of them run: `make foreign-tests ARGS='crawl engine*'`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

FOLDER = REPOSITORY / ".venv-foreign"
# Crawls, engine, downloader, middlewares, robots.txt, media, feeds. Those of parts that no add-on
# can reach (download handlers, selectors, commands) are left out: they take as long again.
SUITES = (
    *("closespider", "core_downloader", "core_scraper", "crawl", "crawler"),
    *("downloadermiddleware", "downloadermiddleware_httpcache", "downloadermiddleware_retry"),
    *("downloadermiddleware_robotstxt", "downloaderslotssettings", "engine*", "extension_throttle"),
    *("feedexport", "feedexport_batch", "pipeline_crawl", "pipeline_media", "pqueues"),
    *("request_left", "scheduler", "signals", "spider_crawl", "spider_start"),
    *("spidermiddleware_httperror", "spidermiddleware_output_chain"),
    "spidermiddleware_process_start",
)
OWN_DOWNLOADER = (
    "the add-on needs a downloader derived from its own, and ends the crawl with another"
)
EXPECTED = {  # by class and name of the test: what may come out otherwise, and why that is right
    "tests.test_core_downloader.test_fetch_deprecated_spider_arg": OWN_DOWNLOADER,
    "tests.test_core_downloader.test_get_slot_key_by_ip": (
        "CONCURRENT_REQUESTS_PER_IP ends the crawl: there is no limit of an address"
    ),
    "tests.test_core_downloader.test_slot_gc": "the test has a downloader without an engine",
    "tests.test_crawl.TestCrawl.test_retry_503": (
        "a refusal is retried SEMAPHORE_BACKOFF_TIMES times, not RETRY_TIMES"
    ),
    "tests.test_downloaderslotssettings.test_delay": (
        "a slot that meta names is a further scope: the delay of the host holds, too"
    ),
    "tests.test_downloaderslotssettings.test_none_slot_with_priority_queue"
    "[scrapy.pqueues.ScrapyPriorityQueue]": (
        "the add-on needs a queue derived from its own, and ends the crawl with another one"
    ),
    "tests.test_engine.TestEngine.test_close_without_downloader": OWN_DOWNLOADER,
    "tests.test_engine.test_download_wrong_type": OWN_DOWNLOADER,
    "tests.test_scheduler.TestIncompatibility.test_incompatibility": (
        "CONCURRENT_REQUESTS_PER_IP ends the crawl before the queue can refuse it"
    ),
    "tests.test_spider_crawl.TestCrawlSpider.test_closed_signal_call": (
        "the test sends spider_opened and spider_closed without awaiting what they start"
    ),
}
EVERYWHERE = """\
# Python runs this at its start: every crawler of every process gets the add-on.
import os

from scrapy.settings import default_settings

default_settings.ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}
default_settings.SEMAPHORE_PREFIX = f"process-{os.getpid()}"  # tests at the same time are apart
default_settings.SEMAPHORE_BACKOFF_START = 0.01  # ten retries of a 503 take minutes otherwise
default_settings.SEMAPHORE_BACKOFF_MAX = 0.02
"""


def sources() -> Path:
    """The folder with Scrapy's tests, without its code: the installed one is tested."""
    version = metadata.version("scrapy")
    folder = FOLDER / f"scrapy-{version}"
    if not folder.exists():
        with tempfile.TemporaryDirectory() as download:
            pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
            named = ("--no-binary", "scrapy", f"scrapy=={version}")
            subprocess.run([*pip, "--dest", download, *named], check=True)
            (archive,) = Path(download).iterdir()
            with tarfile.open(archive) as files:
                files.extractall(download, filter="data")
            (unpacked,) = (path for path in Path(download).iterdir() if path.is_dir())
            shutil.rmtree(unpacked / "scrapy")
            FOLDER.mkdir(exist_ok=True)
            shutil.move(unpacked, folder)
    return folder


def outcomes(
    folder: Path, tests: Iterable[str], environment: Mapping[str, str], workers: str = "auto"
) -> dict[str, str]:
    """Run tests; by class and name: "passed", "failure", "error" or "skipped"."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--timeout={TIMEOUT_S}", f"--numprocesses={workers}", f"--junitxml={report}"]
        ran = subprocess.run(
            [*command, *tests], cwd=folder, env={**os.environ, **environment}, check=False
        )
        if ran.returncode not in (0, 1):  # 1: some have failed
            raise SystemExit(f"pytest ended with status {ran.returncode}")
        return {
            f"{case.get('classname')}.{case.get('name')}": next(
                (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None),
                "passed",
            )
            for case in ET.parse(report).iter("testcase")
        }


def differences(folder: Path, suites: Iterable[str]) -> tuple[set[str], dict[str, str]]:
    """The tests that ran, and which come out otherwise with the add-on, and how."""
    files = [
        f"tests/{path.name}" for suite in suites for path in folder.glob(f"tests/test_{suite}.py")
    ]
    with RedisServer() as server, tempfile.TemporaryDirectory() as directory:
        Path(directory, "sitecustomize.py").write_text(EVERYWHERE)
        add_on = {"REDIS_URL": server.url, "PYTHONPATH": directory}
        plain = outcomes(folder, files, {})
        ours = outcomes(folder, files, add_on)
        other = [test for test in plain if ours.get(test) != plain[test]]
        if other:  # what only time was short for comes out right alone
            names = " or ".join(test.rpartition(".")[2].partition("[")[0] for test in other)
            again = [*files, "-k", names]
            plain |= outcomes(folder, again, {}, "0")
            ours |= outcomes(folder, again, add_on, "0")
    return set(plain), {
        test: f"{plain[test]}, {ours.get(test, 'not run')}"
        for test in other
        if ours.get(test) != plain[test]
    }


def main(suites: Sequence[str]) -> None:
    """Run all, or these suites, and list what differs."""
    ran, found = differences(sources(), suites or SUITES)
    expected = ran.intersection(EXPECTED) if suites else set(EXPECTED)
    print(f"\n{len(ran)} tests of Scrapy {metadata.version('scrapy')}: plain, and with the add-on")
    for test in sorted(expected.union(found)):
        print(f"\n{test}\n    {found.get(test, 'the same, though a difference is expected')}")
        print(f"    {EXPECTED.get(test, 'NOT EXPECTED')}")
    if not expected.issuperset(found):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
