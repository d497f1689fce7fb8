"""The site of the documentation: built without warnings, complete, and whole without a network or a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

import pytest

import hookcore
from tests.browser.browsing import chromium
from tests.manual import PAGES

ROOT = Path(__file__).parents[2]
MAX_PACKED = 3_000_000  # bytes of all files, compressed one by one as in a wheel
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
pytestmark = [pytest.mark.slow, pytest.mark.all]


class Page(HTMLParser):
    """What a page links to, what it loads, its anchors, and its inline scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loaded, self.anchors, self.inline = list[str](), list[str](), set[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.inline += [f"{tag} {name}" for name in values if name.startswith("on")]
        if tag == "script" and "src" not in values:
            self.inline.append("script")
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site that was built from these sources. A warning is an error."""
    folder = tmp_path_factory.mktemp("website")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / ".ci/website.py", folder], check=True, env=environment)
    return folder / "site" / hookcore.__version__


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_each_page_of_the_documentation_is_there_as_html_and_as_markdown(site: Path, pages: dict[Path, Page]) -> None:
    reference = list(site.glob("reference/*.md"))
    assert len(pages) == len(PAGES) + len(reference) + 1  # and the search
    assert {path.with_suffix(".md") for path in pages if path.name != "search.html"} == set(site.rglob("*.md"))


def test_every_link_inside_the_site_leads_to_a_page_and_to_its_anchor(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in (each for each in (*page.links, *page.loaded) if not urlsplit(each).scheme):
            parts = urlsplit(link)
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_every_link_in_the_markdown_of_the_site_leads_to_a_file(site: Path) -> None:
    for path in [*site.rglob("*.md"), site / "llms.txt"]:
        for link in re.findall(r"\]\(([\w./-]+\.(?:md|png))(?:#[\w-]+)?\)", path.read_text()):
            assert (path.parent / link).is_file(), f"{path.name}: {link}"


def test_a_page_loads_nothing_from_another_host_and_has_no_inline_script(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert not [each for each in page.loaded if urlsplit(each).scheme or each.startswith("//")], path.name
        assert not page.inline, path.name
    for style in site.rglob("*.css"):
        addresses = re.findall(r"""(?:url\(|@import\s)["']?([^"')]+)""", style.read_text())
        assert all(each.startswith("data:") or (style.parent / each).is_file() for each in addresses), style.name


# As somebody asks who doesn't know the pages, with those that have the whole answer.
QUESTIONS = {
    "my loss is NaN, which layer?": {"questions", "cookbook/loss-is-nan"},
    "how do I see gradients of one layer from a script?": {"questions", "guide"},
    "does it work with FSDP?": {"questions", "ranks"},
    "what does it cost?": {"questions", "index"},
    "how do I keep it behind a password?": {"questions", "security"},
    "how do I compare two runs?": {"questions", "runs"},
    "how do I limit memory?": {"questions", "keep"},
    "does it change my training?": {"questions"},
    "how do I use it in a notebook?": {"questions", "frameworks"},
    "how do I send from another machine?": {"questions"},
    "why does my loss not go down?": {"cookbook/loss-is-flat"},
    "can I export the data to pandas?": {"guide"},
    "how do I look at a checkpoint?": {"imports"},
}


def test_the_search_finds_an_answer_to_each_question_among_the_first_three_without_a_server(site: Path) -> None:
    missed = {}
    with chromium() as browser, browser.new_context() as context:
        page = context.new_page()
        for question, answers in QUESTIONS.items():
            page.goto(f"{(site / 'search.html').as_uri()}?{urlencode({'q': question})}")
            links = page.locator("#search-results ol.search a")
            links.first.wait_for()
            found = [link.get_attribute("href") or "" for link in links.all()[:3]]
            if not answers & {re.sub(r"\.html.*", "", link) for link in found}:
                missed[question] = found
    assert not missed


def test_what_is_found_leads_to_its_section_and_a_question_in_no_page_says_so(site: Path) -> None:
    with chromium() as browser, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{(site / 'search.html').as_uri()}?q=xyzzy")
        assert "No page has a word of" in page.locator(".search-summary").inner_text()
        page.get_by_label("Search").first.fill("notebook <b>jupyter</b>")
        page.get_by_label("Search").first.press("Enter")
        link = page.locator("#search-results ol.search a").first
        name, _, anchor = (link.get_attribute("href") or "").partition("#")
        assert f'id="{anchor}"' in (site / name).read_text()
        assert page.locator("#search-results mark").count()
        assert not page.locator("#search-results b").count()  # what was asked is a text


def test_the_list_for_language_models_has_each_page_with_a_description(site: Path) -> None:
    lines = [line for line in (site / "llms.txt").read_text().splitlines() if line.startswith("- ")]
    listed = [re.fullmatch(r"- \[[^\]]+\]\(([\w./-]+)\): \S.{9,}", line) for line in lines]
    assert all(listed), lines
    assert {found[1] for found in listed if found} == {str(path.relative_to(site)) for path in site.rglob("*.md")}


def test_the_reference_has_all_public_names_with_their_docstrings(site: Path) -> None:
    text = "\n".join(path.read_text() for path in site.glob("reference/*.md"))
    modules = {"hooks", "probes", "__version__"}
    named = {*hookcore.__all__, *hookcore.hooks.__all__, *hookcore.probes.__all__} - modules
    assert not {name for name in named if f"\n## {name}\n" not in text}
    assert hookcore.Watcher.step.__doc__ is not None
    assert f"### Watcher.step\n\n```python\nWatcher.step() -> None\n```\n\n{hookcore.Watcher.step.__doc__[:40]}" in text


def test_the_site_is_small_enough_to_be_part_of_the_wheel(site: Path) -> None:
    assert sum(len(zlib.compress(path.read_bytes())) for path in site.rglob("*") if path.is_file()) < MAX_PACKED


def test_the_site_says_its_version_and_the_folder_of_sites_lists_it(site: Path) -> None:
    assert f"hookcore {hookcore.__version__}" in (site / "guide.html").read_text()
    assert f'href="{site.name}/index.html"' in (site.parent / "index.html").read_text()


def test_a_page_leads_to_itself_in_another_version_or_to_the_start_of_one_without_it(
    site: Path, tmp_path: Path
) -> None:
    for name in (hookcore.__version__, "0.0.1"):
        shutil.copytree(site, tmp_path / name)
    older = [path.name for path in site.glob("*.html") if path.name != "guide.html"]
    listed = json.loads((site.parent / "versions.js").read_text().removeprefix("window.hookcoreVersions = ")[:-2])
    assert list(listed) == [hookcore.__version__]
    assert set(listed[hookcore.__version__]) == {str(path.relative_to(site)) for path in site.rglob("*.html")}
    (tmp_path / "versions.js").write_text(f"window.hookcoreVersions = {json.dumps({**listed, '0.0.1': older})};")
    with chromium() as browser, browser.new_context() as context:
        page = context.new_page()
        for start, end in (("runs.html", "runs.html"), ("guide.html", "index.html")):
            page.goto((tmp_path / hookcore.__version__ / start).as_uri())
            page.get_by_label("Version of the documentation").select_option("0.0.1")
            page.wait_for_url((tmp_path / "0.0.1" / end).as_uri())
