"""The dashboard shows the documentation of its own version at /docs/, or says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookcore_app import assets
from hookcore_app.serving.guard.security import HEADERS
from tests.serving import BEARER, TOKEN, World, make_world

PAGES = {"index.html": "<h1>hookcore</h1>", "guide.html": "<h1>Guide</h1>", "guide.md": "# Guide", "x/app.js": "run()"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small site next to a file that isn't part of it, in the place of the installed one."""
    (tmp_path / "secret.html").write_text("a secret")
    folder = tmp_path / "site"
    for name, text in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    monkeypatch.setattr(assets, "SITES", (tmp_path / "nothing", folder))
    return folder


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.mark.usefixtures("site")
def test_the_pages_are_served_as_they_are_under_the_policy_of_all_pages(world: World) -> None:
    for name, text in PAGES.items():
        response = world.client.get(f"/docs/{name}")
        assert (response.status_code, response.text) == (200, text)
        assert response.headers["content-security-policy"] == HEADERS["content-security-policy"]
        assert response.headers["cache-control"] == "private, no-cache"
    assert world.client.get("/docs/").text == PAGES["index.html"]


@pytest.mark.usefixtures("site")
def test_the_address_without_a_slash_leads_to_the_first_page_also_behind_a_prefix(world: World) -> None:
    response = world.client.get("/docs", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "docs/")


@pytest.mark.usefixtures("site")
def test_a_page_that_the_browser_has_is_not_sent_again(world: World) -> None:
    first = world.client.get("/docs/guide.html")
    again = world.client.get("/docs/guide.html", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "name",
    ["nothing.html", "..%2fsecret.html", "%2e%2e/secret.html", "link.html", "%00", "x" * 990, "x", "//etc/passwd"],
)
def test_a_file_outside_of_the_site_or_unknown_is_a_404(name: str, world: World) -> None:
    response = world.client.get(f"/docs/{name}")
    assert response.status_code == 404
    assert "secret" not in response.text


def test_an_installation_without_the_site_says_how_to_get_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "SITES", (tmp_path / "nothing",))
    response = world.client.get("/docs/", headers={"Accept": "text/html"})
    assert response.status_code == 404
    assert "make site" in response.text
    assert 'href="docs/"' not in world.client.get("/help").text


@pytest.mark.usefixtures("site")
def test_the_documentation_needs_a_token_as_all_pages_do() -> None:
    client = make_world(token=TOKEN, read_token="r" * 40).client
    assert client.get("/docs/").status_code == 401
    assert client.get("/docs/", headers=BEARER).status_code == 200


@pytest.mark.usefixtures("site")
def test_the_page_help_leads_there_and_the_api_is_described_where_it_was(world: World) -> None:
    assert 'href="docs/"' in world.client.get("/help").text
    assert world.client.get("/api/v1/openapi.json").json()["paths"]
