"""What fails by chance does not fail CI; what fails alone as well does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.rerun import FLAKY, MOST

AT_FIRST = """
from pathlib import Path

def test_it(request):
    seen = Path(request.path.parent, "seen")
    is_first = not seen.exists()
    seen.touch()
    assert not is_first, "the first time"
"""
ALWAYS = "def test_it():\n    assert False\n"
TOO_MANY = (
    AT_FIRST.replace("test_it(request)", "test_it(request, n)")
    .replace("def", f"import pytest\n\n@pytest.mark.parametrize('n', range({MOST + 1}))\ndef")
    .replace('"seen"', 'f"seen{n}"')
)


@pytest.mark.parametrize(
    ("text", "status", "flaky"),
    [
        (AT_FIRST, 0, ["test_some.py::test_it"]),
        (ALWAYS, 1, []),
        (TOO_MANY, 1, []),
        ("import nothing_there\n", 2, []),
        ("def test_it():\n    pass\n", 0, []),
    ],
    ids=["at first", "always", "too many", "no import", "never"],
)
def test_a_failed_test_is_run_again_alone(
    tmp_path: Path, text: str, status: int, flaky: list[str]
) -> None:
    Path(tmp_path, "pytest.ini").touch()
    Path(tmp_path, "test_some.py").write_text(text)
    command = [sys.executable, "-m", "tests.support.rerun", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    ran = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
    listed = tmp_path / FLAKY
    lines = listed.read_text("utf-8").splitlines() if listed.exists() else []
    assert ran.returncode == status, ran.stdout
    assert [line.split()[1] for line in lines] == flaky
    assert all("the first time" in line for line in lines)
