"""The site of these pages: `make docs` builds it into build/docs. GitHub shows the same pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
copyright = f"2026, {author}"
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["README.md"]  # the list of pages on GitHub; here the side bar has it
html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main"}
html_title = project
myst_heading_anchors = 3  # as GitHub makes them
suppress_warnings = ["misc.highlighting_failure"]  # examples leave things out, as "…"

default_role = "code"  # docstrings are written for readers of the source: `this` is code
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def prepare_page(_: Sphinx, page: str, source: list[str]) -> None:
    """Put README.md in front of the first page, and let links to files outside of docs/ lead to the
    repository.
    """
    text = source[0]
    if page == "index":
        readme = (ROOT / "README.md").read_text("utf-8")
        readme = re.sub(r"\]\((?!https:|#|docs/)", "](../", readme).replace("](docs/", "](")
        text = readme + text
    text = re.sub(r"\]\((?:\.\./)?README\.md(#[^)]*)?\)", r"](index.md\1)", text)
    source[0] = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({REPOSITORY}/blob/main/\1)", text)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", prepare_page)
