"""The same attacks in a real browser: what a foreign page can do to a server of the browser's user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hookcore.records import Tap
from tests.browser.browsing import CHROMIUM
from tests.build import make_info
from tests.serving import (
    TOKEN,
    Served,
    foreign_page,
    make_frame,
    served,
)

pytestmark = pytest.mark.slow

# Every way in which a page can send data to another origin. The page shows the results.
EVIL = """<!doctype html><meta charset="utf-8"><title>evil</title><pre id="told"></pre>
<iframe name="frame"></iframe>
<form id="form" method="post" action="SERVER/api/v1/login-link" target="frame"></form>
<form id="text" method="post" enctype="text/plain" action="SERVER/api/v1/login-link" target="frame"></form>
<img src="SERVER/login?code=CODE"><iframe src="SERVER/login?code=CODE"></iframe>
<script>
const told = {};
const note = (name, what) => {
  told[name] = what;
  document.getElementById("told").textContent = JSON.stringify(told);
};
document.getElementById("form").submit();
document.getElementById("text").submit();
const post = (name, options) => fetch("SERVER/api/v1/login-link", {method: "POST", ...options}).then(
  (answer) => note(name, answer.type + answer.status), () => note(name, "failed"));
post("plain", {mode: "no-cors"});
post("cookies", {mode: "no-cors", credentials: "include", body: "{}"});
post("json", {headers: {"Content-Type": "application/json"}, body: "{}"});
navigator.sendBeacon("SERVER/api/v1/login-link", "x");
fetch("SERVER/api/v1/runs/one", {method: "DELETE"}).then(() => note("delete", "sent"), () => note("delete", "failed"));
fetch("SERVER/api/v1/runs").then((answer) => answer.text()).then(
  (text) => note("read", text), () => note("read", "failed"));
const socket = new WebSocket("SERVER/api/v1/socket".replace("http", "ws"));
socket.onopen = () => note("socket", "open");
socket.onerror = () => note("socket", "refused");
const stream = new EventSource("SERVER/api/v1/live");
stream.onopen = () => note("stream", "open");
stream.onerror = () => { note("stream", "refused"); stream.close(); };
</script>"""


def _browse(address: str, profile: Path) -> str:
    """Return what a browser shows after all scripts have run."""
    command = [CHROMIUM, "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=4000", "--timeout=20000", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _fill(server: Served) -> None:
    run = server.runs.open(make_info())
    assert run is not None
    script = "<script>document.title = 'owned'</script>"
    nasty = (Tap(script, "output"), Tap("<img src=x onerror=\"document.title='owned'\">", "output"))
    run.store.append(make_frame(0, new_taps=nasty))
    run.name = f"</title>{script}"


def test_a_foreign_page_in_the_users_browser_can_neither_change_nor_read_anything(tmp_path: Path) -> None:
    with served() as server:
        _fill(server)
        access = server.app.state.access
        code = access.make_code()
        codes = dict(access.codes)
        with foreign_page(EVIL.replace("SERVER", server.url).replace("CODE", code)) as address:
            shown = _browse(address, tmp_path)
        assert '"socket":"refused"' in shown
        assert '"stream":"refused"' in shown
        assert '"read":"failed"' in shown
        assert '"delete":"failed"' in shown
        assert '"json":"failed"' in shown
        assert access.codes == codes  # no POST got through, and the link was not used up
        assert server.runs.get("one") is not None


def test_names_that_contain_scripts_are_shown_as_text(tmp_path: Path) -> None:
    with served() as server:
        _fill(server)
        for path in ("/", "/runs/one"):
            shown = _browse(server.url + path, tmp_path)
            assert "hookcore</title>" in shown  # a script would have changed it
            assert "<script>document" not in shown
            assert "&lt;script&gt;" in shown


def test_a_browser_logs_in_by_its_link_and_stays_logged_in(tmp_path: Path) -> None:
    with served(host="0.0.0.0", token=TOKEN) as server:
        _fill(server)
        code = server.app.state.access.make_code()
        assert "Log in" in _browse(server.url, tmp_path)
        assert 'href="runs/one"' in _browse(f"{server.url}/login?code={code}", tmp_path)
        assert server.app.state.access.take_code(code) is None
