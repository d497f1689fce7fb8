"""Debian's Firefox, driven by Playwright through WebDriver BiDi: `python -m tests.browser.firefox` is its command.

Playwright switches themes by a command that this Firefox doesn't know yet, and never asks it to reduce motion.
It fills fields by a script, which appends to numbers instead of replacing them, and doesn't count as an edit, so no
"change" event follows. So a relay between the two sets preferences of Firefox, lets Firefox insert the text, and
passes on everything else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, Playwright
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

FIREFOX: Final = "/usr/bin/firefox-esr"
THEMES: Final = {"dark": 0, "light": 1, None: 2}  # Firefox's numbers; 2 stands for the system's theme
THEME: Final = "layout.css.prefers-color-scheme.content-override"
MOTION: Final = "ui.prefersReducedMotion"
REDUCED: Final = "'prefers-reduced-motion: reduce'"  # a script that the tests send, and that the relay understands
READY: Final = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
UNKNOWN: Final = "emulation.setMediaFeaturesOverride"
INSERT: Final = re.compile(r"window\.__pw_bidiInsertText\((\w+)\)")
OWN_IDS: Final = 10**12  # Playwright's commands never have such numbers


def launch(playwright: Playwright, folder: Path) -> Browser:
    """Launch Firefox by a command that is written into the folder."""
    command = folder / "firefox"
    command.write_text(f'#!/bin/sh\ncd {Path.cwd()} && exec {sys.executable} -m tests.browser.firefox "$@"\n')
    command.chmod(0o755)
    return playwright.firefox.launch(channel="moz-firefox", executable_path=command)


def reduce_motion(page: Page) -> None:
    """Let Firefox prefer reduced motion until the next session."""
    page.evaluate(REDUCED)


class Relay:
    """Passes messages between a client and Firefox."""

    def __init__(self, client: ServerConnection, firefox: ClientConnection) -> None:
        self.client, self.firefox = client, firefox
        self.ids = itertools.count(OWN_IDS)
        self.waiting: dict[int, Callable[[Any], None]] = {}

    async def run(self) -> None:
        """Relay until either side closes."""
        tasks = [asyncio.create_task(self.to_firefox()), asyncio.create_task(self.to_client())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await self.firefox.close()

    async def to_firefox(self) -> None:
        """Pass on commands."""
        tasks = set()
        async for text in self.client:
            command = json.loads(text)
            if command["method"] == UNKNOWN:
                task = asyncio.create_task(self.switch_theme(command))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            else:
                if REDUCED in text:
                    await self.prefer({MOTION: 1})
                await self.firefox.send(INSERT.sub(r"document.execCommand('insertText', false, \1)", text))

    async def to_client(self) -> None:
        """Pass on answers and events."""
        async for text in self.firefox:
            answer = json.loads(text)
            own = self.waiting.pop(answer.get("id") or 0, None)
            if own:
                own(answer)
            else:
                await self.client.send(text)

    async def switch_theme(self, command: Any) -> None:
        """Set Firefox's preference, and answer in its place. A new session starts with a theme, and with motion."""
        await self.prefer({THEME: THEMES[command["params"]["features"].get("prefers-color-scheme")], MOTION: 0})
        await self.client.send(json.dumps({"type": "success", "id": command["id"], "result": {}}))

    async def prefer(self, chosen: dict[str, int]) -> None:
        """Set preferences of Firefox."""
        tree = await self.ask("browsingContext.getTree", {"moz:scope": "chrome"})
        target = {"context": tree["contexts"][0]["context"]}
        script = "; ".join(f"Services.prefs.setIntPref({name!r}, {number})" for name, number in chosen.items())
        await self.ask("script.evaluate", {"expression": script, "target": target, "awaitPromise": False})

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send a command of the relay, and return its result."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = next(self.ids)
        self.waiting[number] = answered.set_result
        await self.firefox.send(json.dumps({"id": number, "method": method, "params": params}))
        answer = await answered
        if answer["type"] != "success":
            raise RuntimeError(f"Firefox can't do {method}: {answer}")
        return answer["result"]


async def main() -> None:
    """Start Firefox with the given arguments, and relay its connection."""
    arguments = ("--remote-allow-system-access", *sys.argv[1:])
    firefox = await asyncio.create_subprocess_exec(FIREFOX, *arguments, stderr=asyncio.subprocess.PIPE)
    assert firefox.stderr is not None
    async for line in firefox.stderr:
        if found := READY.search(line.decode(errors="replace")):
            break
    else:
        sys.exit("Firefox ended before it listened")
    url = found[1]

    async def relay(client: ServerConnection) -> None:
        assert client.request is not None
        async with connect(url + client.request.path, max_size=None, ping_interval=None) as connection:
            await Relay(client, connection).run()

    async def drain() -> None:
        assert firefox.stderr is not None
        while await firefox.stderr.read(2**16):
            pass

    async with serve(relay, "127.0.0.1", 0, max_size=None, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"WebDriver BiDi listening on ws://127.0.0.1:{port}", file=sys.stderr, flush=True)
        await asyncio.gather(drain(), firefox.wait())


if __name__ == "__main__":
    asyncio.run(main())
