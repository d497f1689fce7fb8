"""Films the demo with a NaN, from the first steps to the guilty line, for the README: docs/pictures/nan.gif.

    .venv/bin/python .ci/film.py

It starts the demo with a dashboard of its own, and takes pictures of the real pages in Chromium until that of the
incident names the line of code.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

ROOT: Final = Path(__file__).parent.parent
TARGET: Final = ROOT / "docs" / "pictures" / "nan.gif"
SIZE: Final = 1180, 720
SHOWN: Final = 944, 576  # the size in the README
COLORS: Final = 96
MOST_BYTES: Final = 3_000_000
FRAME_MS: Final = 400
LAST_MS: Final = 4000
TRAINING: Final = 30  # the newest pictures of the training, until its NaN has a cause
WAIT_S: Final = 120.0


def main() -> None:
    """Film it, and write the file."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOOKCORE_HOME": home, "HOOKCORE_PORT": str(_free_port())}
        demo = subprocess.Popen(
            [sys.executable, "-m", "hookcore_app.cli", "demo", "--trouble", "nan"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            pictures = film(_address_of(demo))
        finally:
            demo.terminate()
            demo.wait()
    durations = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    first, *rest = [picture.quantize(COLORS, dither=Image.Dither.NONE) for picture in pictures]
    first.save(TARGET, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
    size = TARGET.stat().st_size
    print(f"{TARGET.relative_to(ROOT)}: {len(pictures)} pictures, {sum(durations) / 1000:.0f} s, {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        raise SystemExit(f"the file has {size:,} bytes: at most {MOST_BYTES:,} are allowed")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _address_of(demo: subprocess.Popen[str]) -> str:
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(r"http://\S+/runs/\S+", line):
            return found[0]
    raise SystemExit("the demo ended without an address")


def film(address: str) -> list[Image.Image]:
    """Return the pictures, from the training to the line of code."""
    with sync_playwright() as driver:
        path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(address)
        page.wait_for_load_state()
        pictures, incident = list[Image.Image](), page.locator("#findings .cause a").first
        until = time.monotonic() + WAIT_S
        while not incident.is_visible() and time.monotonic() < until:
            pictures.append(_shot(page))
            page.wait_for_timeout(FRAME_MS)
        pictures = pictures[-TRAINING:]
        pictures += [_shot(page), _shot(page)]
        box = incident.bounding_box()
        assert box is not None
        pictures += [_pointed(_shot(page), box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)] * 2
        incident.click()
        page.wait_for_load_state()
        code = page.get_by_text(re.compile(r"\.py:\d+")).first
        code.wait_for(timeout=WAIT_S * 1000)
        pictures += [_shot(page)] * 5
        code.scroll_into_view_if_needed()
        page.wait_for_timeout(FRAME_MS)
        pictures.append(_shot(page))
        browser.close()
    return pictures


def _shot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize(SHOWN, Image.Resampling.LANCZOS)


def _pointed(picture: Image.Image, x: float, y: float) -> Image.Image:
    """Return the picture with a ring where the pointer is about to click."""
    drawn, scale = picture.copy(), SHOWN[0] / SIZE[0]
    x, y = x * scale, y * scale
    ImageDraw.Draw(drawn).ellipse((x - 14, y - 14, x + 14, y + 14), outline=(0, 90, 200), width=3)
    return drawn


if __name__ == "__main__":
    main()
