"""The site of these pages: `make docs` builds it into build/docs. GitHub shows the same pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
copyright = f"2026, {author}"
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"
# The list of pages on GitHub; here the side bar has it. Examples are for a clone.
exclude_patterns = ["README.md", "examples"]
html_theme = "furo"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_title = f"{project} {version}"
html_favicon = "pictures/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .c1"  # comments beside commands
myst_heading_anchors = 3  # as GitHub makes them
suppress_warnings = ["misc.highlighting_failure"]  # examples leave things out, as "…"

smartquotes = False  # in an example they would be wrong
default_role = "py:obj"  # docstrings are written for readers of the source: `this` is code
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


PAGES_OF_NAMES = ("settings", "commands", "stats", "metrics", "shared-crawl", "page")


class NamesInIndex(SphinxTransform):
    """Entries in the index for what the pages explain: for a heading that is code, and for a list
    item that begins with code and a colon, which gets an anchor, too. A search finds these first.
    """

    default_priority = 500  # before Sphinx collects the index

    def apply(self, **_: Any) -> None:
        """Called by Sphinx for each page."""
        if self.env.docname not in PAGES_OF_NAMES:
            return
        for title in list(self.document.findall(nodes.title)):
            if names := names_before("", title):
                self._enter(title.parent, names)
        for item in list(self.document.findall(nodes.list_item)):
            if isinstance(item[0], nodes.paragraph) and (names := names_before(":", item[0])):
                item["names"] = names[:1]
                self.document.set_id(item)
                self._enter(item, names)

    def _enter(self, node: nodes.Element, names: list[str]) -> None:
        entries = [("single", name, node["ids"][0], "main", None) for name in names]
        node.insert(0, addnodes.index(entries=entries))


def names_before(end: str, node: nodes.Element) -> list[str]:
    """The code at the beginning of a node, if nothing but commas is in between, up to `end`."""
    names = []
    for child in node.children:
        if isinstance(child, nodes.literal) or isinstance(child.next_node(), nodes.literal):
            names.append(child.astext())
        elif child.astext() != ", ":
            return names if end and child.astext().startswith(end) else []
    return [] if end else names


def prepare_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put README.md in front of the first page, and let links to files outside of docs/, and to
    examples, lead to the repository.
    """
    text = source[0]
    if page == "index":
        app.env.note_dependency(str(ROOT / "README.md"))
        readme = (ROOT / "README.md").read_text("utf-8")
        readme = re.sub(r"\]\((?!https:|#|docs/)", "](../", readme).replace("](docs/", "](")
        text = readme + text
    text = re.sub(r"\]\((?:\.\./)?README\.md(#[^)]*)?\)", r"](index.md\1)", text)
    text = text.replace("](examples/", "](../docs/examples/")
    source[0] = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({REPOSITORY}/blob/main/\1)", text)


def prepare_docstring(
    _: Sphinx, _what: str, _name: str, _thing: Any, _how: Any, lines: list[str]
) -> None:
    """Docstrings only indent their examples, where reStructuredText wants `::` before them, and
    name pages by their files.
    """
    lines[:] = [re.sub(r"docs/([\w-]+)\.md", r":doc:`\1`", line) for line in lines]
    for n in range(len(lines) - 1, 0, -1):
        begins = lines[n].startswith("    ") and not lines[n - 1]
        if begins and not (n > 1 and lines[n - 2].startswith("    ")):
            lines[n:n] = ["::", ""]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_transform(NamesInIndex)
    app.connect("autodoc-process-docstring", prepare_docstring)
    app.connect("source-read", prepare_page)
