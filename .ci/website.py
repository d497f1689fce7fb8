"""Builds the site of the documentation, `build/site/VERSION/`, from the Markdown of this project: `make docs`.

The pages are those of `docs/` and the top folder, and the reference that `reference.py` writes from docstrings. Sphinx
makes the HTML, and any warning is an error. Each page is there as `.md` too, and `llms.txt` lists all of them.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import reference
from sphinx.application import Sphinx

import hookcore

ROOT = Path(__file__).resolve().parents[1]
ABOUT = "Watches a PyTorch training run from inside: every module's activations and gradients, every step."
REFERENCE = "reference/"
# The pages in groups, in the order of the navigation. Sphinx refuses a page that is in none of them.
GROUPS = {
    "Start": (
        *("installing", "guide", "questions", "frameworks", "troubleshooting", "versions", "coming-from"),
        "comparison",
    ),
    "Cookbook": ("cookbook/index", "cookbook/*"),
    "Guides": (
        *("patterns", "rules", "capsules", "timeline", "model", "dataflow", "machine", "runs", "report", "keep"),
        *("imports", "probes", "samples", "media", "hooks", "store", "live", "agents", "ranks"),
    ),
    "Reference": ("settings", "http-api", REFERENCE + "*", "changelog", "changes-0.1.0"),
    "Operations": ("docker", "slurm", "kubernetes", "collector", "clickhouse", "scale", "notifications", "security"),
    "How it is built": ("how-it-works", "architecture", "benchmarks", "contributing", "reporting"),
}
# Pages outside of docs/, by their place in the site.
TOP = {"README": "index", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "reporting"}
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
# Sphinx's search finds the pages that have all words of a question, in the order of the alphabet.
_SPHINX_SEARCH = re.compile(
    r'(\s*<script src="(_static/searchtools|_static/language_data|searchindex)\.js"></script>){3}'
)
_SEARCH = '\n<script src="searchindex.js"></script>\n<script src="_static/search.js"></script>'
SETTINGS: dict[str, Any] = {
    "project": "hookcore",
    "version": hookcore.__version__,
    "release": hookcore.__version__,
    "html_title": f"hookcore {hookcore.__version__}",
    "html_short_title": "hookcore",
    "html_theme": "furo",
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 6,
    "myst_disable_syntax": ["myst_role", "myst_target", "myst_block_break", "myst_line_comment"],
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_use_index": False,
    "html_favicon": str(ROOT / "app/static/icon.svg"),
    "html_static_path": [str(ROOT / ".ci/site")],
    "html_js_files": [("versions.js", {"defer": "defer"})],
}


def main(build: Path) -> None:
    """Build the site in a folder, `site/VERSION`. The first problem ends it."""
    work, site = build / "site-source", build / "site" / hookcore.__version__
    for folder in (work, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages = read_pages()
    groups = {title: list(_chosen(patterns, pages)) for title, patterns in GROUPS.items()}
    for name, text in pages.items():
        _write(work / f"{name}.md", text + (_navigation(groups) if name == "index" else ""))
    for picture in (ROOT / "docs/pictures").iterdir():
        _write(work / "pictures" / picture.name, picture.read_bytes())
    _write(work / "LICENSE", (ROOT / "LICENSE").read_bytes())
    doctrees = build / "site-doctrees"
    app = Sphinx(work, None, site, doctrees, "html", SETTINGS, status=None, freshenv=True, warningiserror=True)
    app.build()
    if app.statuscode:
        raise SystemExit("the site is not built: Sphinx's warnings above say why")
    sphinx_search = ("_static/searchtools.js", "_static/language_data.js")
    for leftover in (".buildinfo", "objects.inv", *sphinx_search, *site.glob("_static/*/*.map")):
        (site / leftover).unlink(missing_ok=True)
    shutil.rmtree(site / "_sources", ignore_errors=True)
    (site / "_images").rename(site / "pictures")  # where the Markdown has them, too
    sections = [section for name in pages for section in Sections.of((site / f"{name}.html").read_text(), name)]
    _write(site / "searchindex.js", f"window.hookcoreSections = {json.dumps(sections, ensure_ascii=False)};\n")
    for page in site.rglob("*.html"):
        html = _SPHINX_SEARCH.sub(_SEARCH, _without_inline_scripts(page.read_text(), site, page))
        _write(page, html.replace('src="_images/', 'src="pictures/').replace("../_images/", "../pictures/"))
    for name, text in pages.items():
        _write(site / f"{name}.md", text)
    shutil.copy(work / "LICENSE", site)
    _write(site / "llms.txt", "\n".join(_list_of(pages, groups)))
    names = _versions_in(site.parent)
    _write(site.parent / "index.html", _list_of_versions(names))
    listed = {name: sorted(_pages_of(site.parent / name)) for name in names}
    _write(site.parent / "versions.js", f"window.hookcoreVersions = {json.dumps(listed)};\n")
    print(f"{site}: {len(pages)} pages")


def read_pages() -> dict[str, str]:
    """Return the Markdown of all pages by their names in the site, with links between the names there."""
    sources = {ROOT / f"{source}.md": name for source, name in TOP.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        sources[path] = re.sub("README$", "index", path.relative_to(ROOT / "docs").with_suffix("").as_posix())
    pages = {name: _linked(path, name, sources) for path, name in sources.items()}
    return pages | {REFERENCE + name: reference.page_of(group) for name, group in reference.groups().items()}


def _linked(path: Path, name: str, sources: dict[Path, str]) -> str:
    """Return a page without the comments for its tests, and with links that lead to pages of the site."""

    def lead(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / found[1]))
        if target in sources:
            place = f"{sources[target]}.md"
        elif target.is_file():
            place = target.relative_to(ROOT / "docs" if ROOT / "docs" in target.parents else ROOT).as_posix()
        else:
            return found[0]  # no link, or a broken one, which Sphinx refuses
        return f"]({posixpath.relpath(place, posixpath.dirname(name) or '.')}{found[2] or ''})"

    return _LINK.sub(lead, _COMMENT.sub("", path.read_text()))


def _chosen(patterns: tuple[str, ...], pages: dict[str, str]) -> Iterator[str]:
    for pattern in patterns:
        folder = pattern.removesuffix("*")
        yield from (
            [pattern]
            if folder == pattern
            else [each for each in pages if each.startswith(folder) and each not in patterns]
        )


def _navigation(groups: dict[str, list[str]]) -> str:
    return "".join(
        "\n```{toctree}\n:hidden:\n:caption: " + title + "\n\n" + "\n".join(names) + "\n```\n"
        for title, names in groups.items()
    )


def _without_inline_scripts(html: str, site: Path, page: Path) -> str:
    """Move the scripts inside a page to files, because the dashboard's content security policy allows no others."""

    def move(found: re.Match[str]) -> str:
        name = f"_static/inline-{len(found[1].strip())}.js"
        _write(site / name, found[1].strip())
        return f'<script src="{posixpath.relpath(name, page.parent.relative_to(site).as_posix())}"></script>'

    return _INLINE.sub(move, html)


class Sections(HTMLParser):
    """The sections of a page: their anchors, headings, and texts, without those of sections inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str], list[str]]] = []
        self._open: list[tuple[str, list[str], list[str]]] = []
        self._in_heading = False

    @classmethod
    def of(cls, html: str, page: str) -> Iterator[tuple[str, ...]]:
        """Yield for each section its page, the page's title, its anchor, its heading, and its text."""
        parser = cls()
        parser.feed(html)
        texts = [(anchor, *(" ".join("".join(each).split()) for each in parts)) for anchor, *parts in parser.found]
        for place, (anchor, heading, text) in enumerate(texts):
            yield page, texts[0][1], anchor if place else "", heading, text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a section or a heading. Words of two blocks stay two words."""
        if tag == "section":
            self._open.append((dict(attrs).get("id") or "", [], []))
            self.found.append(self._open[-1])
        elif self._open and re.fullmatch("h[1-6]", tag):
            self._in_heading = True
        elif self._open and tag in ("p", "li", "td", "th", "pre", "div", "br"):
            self._open[-1][2].append(" ")

    def handle_endtag(self, tag: str) -> None:
        """End a section or a heading."""
        if tag == "section":
            self._open.pop()
        elif re.fullmatch("h[1-6]", tag):
            self._in_heading = False

    def handle_data(self, data: str) -> None:
        """Add a text to its section, without the signs that are links to headings."""
        if self._open and data != "\N{PILCROW SIGN}":
            self._open[-1][1 if self._in_heading else 2].append(data)


def title_of(text: str) -> str:
    """Return the title of a page."""
    return re.sub("`", "", text.partition("# ")[2].partition("\n")[0])


def sentence_of(text: str) -> str:
    """Return the first sentence of a page as plain text."""
    prose = re.split(r"\n{2,}", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    paragraph = next(each for each in prose if re.match(r"[\w`*\[]", each))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", plain)[0].rstrip(":")


def _list_of(pages: dict[str, str], groups: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of llms.txt: https://llmstxt.org."""
    yield from (f"# hookcore {hookcore.__version__}", "", f"> {ABOUT}", "")
    yield f"- [{title_of(pages['index'])}](index.md): {sentence_of(pages['index'])}"
    for title, names in groups.items():
        yield from ("", f"## {title}", "")
        yield from (f"- [{title_of(pages[name])}]({name}.md): {sentence_of(pages[name])}" for name in names)
    yield ""


def _versions_in(folder: Path) -> list[str]:
    """Return the names of the sites in a folder, the newest one first."""
    names = [each.name for each in folder.iterdir() if each.is_dir()]
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)


def _pages_of(site: Path) -> Iterator[str]:
    return (page.relative_to(site).as_posix() for page in site.rglob("*.html"))


def _list_of_versions(names: list[str]) -> str:
    """Return a page that links to the sites of all versions."""
    links = "".join(f'<li><a href="{name}/index.html">hookcore {name}</a></li>' for name in names)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>hookcore: versions of the documentation</title><h1>hookcore</h1><ul>{links}</ul></html>\n"
    )


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build")
