"""What people want from the pages, done by clicks in a headless Chromium, and compared with what was planted.

python -m benchmarks.tasks                  # all tasks: some minutes
python -m benchmarks.tasks --only why sweep

Each task begins on the page Runs. A click is a click, a choice in a list (two clicks), or a drag. Keys are counted
separately; typing needs no click if a key leads to the box.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

import hookcore
from benchmarks.planted import CASES, Net
from hookcore.delivery import delivery
from tests.browser.browsing import chromium
from tests.browser.site import Site, running
from tests.processes import ROOT
from tests.serving import foreign_page

WIDE: Final = ViewportSize(width=1440, height=900)
PHONE: Final = ViewportSize(width=390, height=844)
PACE_S: Final = 1.5  # before each click of the newcomer, for reading and aiming
PATIENCE_S: Final = 300
RIGHTS: Final = ("clipboard-read", "clipboard-write")


@dataclass
class Person:
    """Somebody with a mouse and a keyboard, whose clicks and keys are counted."""

    page: Page
    url: str
    pace_s: float = 0.0
    clicks: int = 0
    keys: int = 0

    def home(self) -> None:
        """Begin at the page Runs."""
        self.page.goto(self.url)
        expect(self.page.locator("[data-do=tick]").first).to_be_visible()  # its script has begun
        self.clicks = self.keys = 0

    def click(self, what: Locator) -> None:
        """Click something that is on the page."""
        self.page.wait_for_timeout(self.pace_s * 1000)
        what.click()
        self.clicks += 1

    def choose(self, what: Locator, value: str) -> None:
        """Open a list, and choose."""
        self.page.wait_for_timeout(2 * self.pace_s * 1000)
        what.select_option(value)
        self.clicks += 2

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from one place in the window to another."""
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move(*end, steps=8)
        self.page.mouse.up()
        self.clicks += 1

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
            self.keys += 1

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.page.keyboard.type(text)
        self.keys += len(text)

    def row(self, name: str) -> Locator:
        """Return the row of a run."""
        return self.page.locator(f"tr[data-name='{name}']")

    def open(self, name: str, *pages: str) -> None:
        """Open a run, and pages of it."""
        self.click(self.row(name).locator(".name a"))
        expect(self.page.locator(".run-name")).to_be_visible()
        expect(self.page.locator("#palette")).to_be_visible()  # the script of the run's page has begun
        for each in pages:
            self.side(each)

    def entry(self, title: str) -> Locator:
        """Return the link to a page in the menu."""
        return self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=re.compile(f"^{title}"))

    def side(self, title: str) -> None:
        """Open another page of the run."""
        link = self.entry(title)
        self.click(link)
        expect(link).to_have_attribute("aria-current", "page")

    def tab(self, title: str) -> None:
        """Open another tab of the page."""
        link = self.page.get_by_role("link", name=re.compile(f"^{title}"))
        self.click(link)
        expect(link).to_have_attribute("aria-current", "page")

    def said(self, selector: str) -> str:
        """Return the first text at a selector, as one line."""
        return " ".join(self.page.locator(selector).first.inner_text().split())


@dataclass
class World:
    """A server with the runs of all trainings, and what was planted in them."""

    site: Site
    browser: Browser
    planted: dict[str, Any] = field(default_factory=dict)
    best: tuple[float, int] = (0.0, 0)

    def train(self, case: str) -> None:
        """Run the trainings of a case, and remember what it planted."""
        words = self._run("benchmarks.planted", case, self.site.url)
        self.planted[case] = json.loads(words[-1])

    def sweep(self) -> None:
        """Run the sweep of the pages' tests."""
        losses = {}
        for line in self._run("tests.browser.sweep", self.site.url):
            rate, width, loss = line.split()
            losses[float(rate), int(width)] = float(loss)
        self.best = min(losses, key=lambda setting: losses[setting])

    def _run(self, module: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", module, *arguments]
        env = self.site.environment()
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()

    def loss_of(self, name: str, step: int) -> float:
        """Return the loss of a run at a step, as the interface says it."""
        client = hookcore.Client(self.site.url, run=self.id_of(name))
        return float(client.scalars("loss", first=step, last=step)["loss"].mean[0])

    def id_of(self, name: str) -> str:
        """Return the id of the run with a name."""
        return str(self.site.run(name)["id"])


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its words, the clicks it took at first, the trainings it needs, and how it is done."""

    words: str
    then: str
    needs: tuple[str, ...]
    do: Callable[[World, Person], tuple[str, bool]]


def first_nan(world: World, person: Person) -> tuple[str, bool]:
    """Read the layer on the page Runs, and its step behind the link."""
    planted = world.planted["nan"]
    person.click(person.row("nan").locator(".alerts a"))
    line = person.said("#list")
    found = re.search(r"NaN or infinity (\S+) NaN in the activation at step (\d+)", line)
    assert found, line
    return f"{found[1]}, step {found[2]}", (found[1], int(found[2])) == (planted["module"], planted["step"])


def why(world: World, person: Person) -> tuple[str, bool]:
    """Open the problem, and let its saved step be replayed if it wasn't yet, as on a busy machine."""
    person.click(person.row("nan").locator(".alerts a"))
    person.click(person.page.locator("#list .what a").first)
    cause, explain = (
        person.page.locator("#cause .capsule"),
        person.page.get_by_role("button", name="Explain", exact=True),
    )
    expect(cause.get_by_text("was replayed").or_(explain)).to_be_visible()
    if explain.is_visible():
        person.click(explain)
    expect(cause).to_contain_text("was replayed", timeout=180_000)
    text = " ".join(cause.inner_text().split())
    sentence = cause.locator("b").first.inner_text()
    guilty = " ".join(cause.locator(".guilty").first.inner_text().split())
    element = re.search(r"first at \[(\d+),", text)
    sample = int(element[1]) if element else -1
    right = sample == world.planted["nan"]["sample"] and "sqrt" in guilty
    return f"{sentence} Sample {sample}; line {guilty}", right


def vanishing(world: World, person: Person) -> tuple[str, bool]:
    """Read the finding, and then the layers without any gradient."""
    person.click(person.row("sigmoids").locator(".alerts a"))
    message = person.said("#list")
    found = re.search(r"the activation gradient gets.*?(?= [\d,]+ )", message)
    place = re.search(r"zero in (\d+)", message)
    right = found is not None and place is not None and int(place[1]) in world.planted["sigmoids"]["zero"]
    return found[0] if found else message[:160], right


def learning_rate(world: World, person: Person) -> tuple[str, bool]:
    """Read on the page Runs which of two runs has a finding about its updates."""
    name = world.planted["rate"]["high"]
    calm = " ".join(person.row("calm").locator(".alerts").inner_text().split())
    person.click(person.row(name).locator(".alerts a"))
    person.click(person.page.locator("#list .what a").first)
    message = person.said("#main")
    found = re.search(r"[Tt]he gradient has been .*?(?= First step)", message)
    tried = re.search(r"What to try (.*?)[,;]", message)
    words = f"{name}: {found[0] if found else message[:100]}; what to try: {tried[1] if tried else ''}. calm: {calm}"
    return words, "lower the learning rate" in message and calm == "none"


def compare(world: World, person: Person) -> tuple[str, bool]:
    """Select two runs, and compare them."""
    planted = world.planted["twins"]
    for name in ("twin-a", "twin-b"):
        person.click(person.row(name).locator(".tick label"))
    person.click(person.page.locator("#compare"))
    lead = person.said(".verdict .lead")
    return lead, f"step {planted['step']}" in lead and planted["module"] in lead


def feature_map(world: World, person: Person) -> tuple[str, bool]:
    """Find the output of a convolution of a live run among its automatic snapshots."""
    page = person.page
    person.open("live", "Model")
    person.tab("Tensors")
    person.press("/")
    person.type("features.0")
    expect(page.locator("#viewer-title")).to_have_text(re.compile(r"^features\.0 .*activation$"))
    expect(page.locator("#view option:checked")).to_have_text("feature maps")
    expect(page.locator("#panes canvas.tiles")).to_be_visible()
    return person.said("#kept [aria-current]"), "32 \u00d7 16 \u00d7 8 \u00d7 8" in person.said("#kept [aria-current]")


def attention(world: World, person: Person) -> tuple[str, bool]:
    """Find all attention maps of a live run, which nobody asked for."""
    person.open("live", "Model")
    person.tab("Tensors")
    about = person.page.locator("#rollout-about")
    expect(about).to_contain_text("2 heads, 36 positions", timeout=60_000)
    return person.said("#rollout-about"), True


def back_to_a_step(world: World, person: Person) -> tuple[str, bool]:
    """Hold the page at step 120, and look at other pages, by keys."""
    page = person.page
    person.open("sigmoids")
    person.press("#")
    expect(page.locator("#step-box")).to_be_focused()
    person.type("120")
    person.press("Enter")
    page.wait_for_url(re.compile("step=120"))
    loss = page.locator("#scalars [id=scalar-loss] data")
    expect(loss).to_be_visible()
    truth = world.loss_of("sigmoids", 120)
    page.wait_for_function("() => /120/.test(document.querySelector('#status-words').innerText)")
    shown = float(loss.get_attribute("value") or "nan")
    held = []
    for title in ("Flow", "Metrics", "Model"):
        link = person.entry(title)
        person.press("g", str(link.get_attribute("data-key")))
        expect(link).to_have_attribute("aria-current", "page")
        held.append(page.locator("#step-box").input_value())
    right = abs(shown - truth) < 1e-6 and held == ["120"] * 3
    return f"loss {shown:.4g} at step 120; {', '.join(held)} on the next pages", right


def zoom(world: World, person: Person) -> tuple[str, bool]:
    """Drag over the loss, and look at another page."""
    page = person.page
    person.open("sigmoids")
    expect(page.locator("#chart .nsewdrag").first).to_be_attached()
    box = page.locator("#chart .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    person.drag((box["x"] + 0.3 * box["width"], y), (box["x"] + 0.6 * box["width"], y))
    expect(page.locator("#range-chip")).to_be_visible()
    chosen = person.said("#range-words")
    person.side("Flow")
    other = person.said("#range-words")
    return f"{chosen}, and on Flow {other}", chosen == other != ""


def only_attention(world: World, person: Person) -> tuple[str, bool]:
    """Type in the find box above the list of layers: the table below it shows the same layers."""
    person.open("live")
    page = person.page
    person.press("g", "l")
    expect(page.locator("#choice")).to_be_visible()
    expect(page.locator("#palette")).to_be_visible()  # its script has begun
    person.press("/")
    person.type("attention")
    page.wait_for_url(re.compile("f=attention"))
    page.locator("#values").scroll_into_view_if_needed()
    header = page.locator("#values header")
    expect(header).to_contain_text(re.compile(r"of \d+"))
    page.wait_for_function(
        "() => [...document.querySelectorAll('#values tbody th')].every((each) => /attention/.test(each.innerText))"
    )
    names = page.locator("#values tbody th").all_inner_texts()
    return f"{len(names)} rows, {person.said('#values header')}", bool(names)


def share(world: World, person: Person) -> tuple[str, bool]:
    """Copy a link while the run goes on, and open it elsewhere."""
    page = person.page
    person.open("live", "Flow")
    person.click(page.locator("#link"))
    expect(page.locator(".toast")).to_contain_text("held at step")
    link = page.evaluate("navigator.clipboard.readText()")
    other = world.browser.new_page()
    try:
        other.goto(link)
        expect(other.locator("#status")).to_have_class("pill paused")
        held = other.locator("#step-box").input_value()
    finally:
        other.close()
    step = re.search(r"step=(\d+)", link)
    return f"opened elsewhere, it is held at step {held}", step is not None and step[1] == held.replace(",", "")


def pandas(world: World, person: Person) -> tuple[str, bool]:
    """Copy a chart's question as Python, and run it."""
    page = person.page
    person.open("sigmoids")
    chart = page.locator("#chart")
    person.click(chart.get_by_role("button", name=re.compile("^Actions")))
    person.click(page.get_by_role("menuitem", name="Copy as Python"))
    expect(page.locator(".toast")).to_contain_text("Copied")
    script = page.evaluate("navigator.clipboard.readText()")
    found: dict[str, Any] = {}
    exec(script, found)
    rows = len(found["scalars"].to_pandas())
    return f"a DataFrame of {rows} rows, with .to_pandas()", rows == 150


def change_capture(world: World, person: Person) -> tuple[str, bool]:
    """Capture updates too, while the training runs."""
    page = person.page
    person.open("live", "Capture")
    person.click(page.get_by_label("updates", exact=True))
    expect(page.locator("#dry-run")).to_contain_text("; also updates")
    person.press("Enter")
    told = page.locator("#capture-told")
    expect(told).to_have_attribute("data-state", "applied")
    run = world.id_of("live")
    kinds = world.site.get(f"settings?run={run}")["settings"]["kinds"]
    return person.said("#capture-told"), "update" in kinds


def cost(world: World, person: Person) -> tuple[str, bool]:
    """Read the cost on the first page of a run."""
    person.open("live")
    line = person.said("#cost")
    return line, re.search(r"\d\s?%|not measured", line) is not None


def phone(world: World, person: Person) -> tuple[str, bool]:
    """Visit all pages of a run at 390 pixels: nothing must need sideways scrolling."""
    page = person.page
    page.set_viewport_size(PHONE)
    person.open("live")
    titles = [text.split("\n")[0].strip() for text in page.locator("nav.side a[data-place]:visible").all_inner_texts()]
    wide = []
    for title in titles:
        person.side(title)
        page.wait_for_timeout(500)
        if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
            wide.append(title)
    page.set_viewport_size(WIDE)
    return f"{len(titles)} pages, wider than the phone: {', '.join(wide) or 'none'}", not wide


def notebook(world: World, person: Person) -> tuple[str, bool]:
    """Show a watcher's cell in a page of another site: the loss is in it."""
    vars(delivery)["PORT"] = 0  # any free one
    watcher = hookcore.watch(Net(), server="thread", name="cell", budget=None)
    watcher.log(loss=0.25)
    watcher.step()
    watcher.flush()
    try:
        with foreign_page(f"<!doctype html><meta charset=utf-8><body>{watcher._repr_html_()}") as address:
            person.page.goto(address.replace("127.0.0.1", "localhost"))
            inside = person.page.frame_locator("iframe")
            loss = inside.locator("#scalars [id=scalar-loss]")
            expect(loss).to_contain_text("0.25")
            said = " ".join(loss.inner_text().split())
    finally:
        watcher.close()
    return said, True


def keyboard(world: World, person: Person) -> tuple[str, bool]:
    """Open a run, a page, and a layer with keys alone."""
    page = person.page
    person.press("Control+k")
    expect(page.get_by_role("combobox", name=re.compile("^Find actions"))).to_be_focused()
    person.type("nan")
    option = page.get_by_role("group", name="Runs").get_by_role("option", name=re.compile("^nan"))
    expect(option).to_be_visible()
    for _ in range(10):
        if option.get_attribute("aria-selected") == "true":
            break
        person.press("ArrowDown")
    person.press("Enter")
    expect(page.locator(".run-name")).to_have_text("nan")
    expect(page.locator("h1")).to_have_text("nan")
    person.press("g", "p")
    expect(page).to_have_title(re.compile("^Problems"))
    expect(page.locator("#list")).to_contain_text("NaN or infinity")
    said = person.said("#list .module")
    return f"Problems, the first finding: {said}", said == world.planted["nan"]["module"] and person.clicks == 0


def crashed(world: World, person: Person) -> tuple[str, bool]:
    """Read the error on the first page of the run, and open the traceback."""
    planted = world.planted["crash"]
    person.open("crash")
    banner = person.page.get_by_role("region", name="Why the run ended")
    person.click(banner.locator("summary"))
    trace, said = banner.locator("pre").inner_text(), person.said(".failure-banner p")
    right = f"step {planted['step']}" in said and planted["error"] in trace and "planted.py" in trace
    return f"{said}; {trace.strip().splitlines()[-1]}", right


def last_week(world: World, person: Person) -> tuple[str, bool]:
    """Start the server again, as after a week, and open a run that is only on disk."""
    before = world.loss_of("twin-a", 79)
    world.site.kill()
    world.site.start()
    person.home()
    expect(person.row("twin-a").locator(".where")).to_contain_text("on disk")
    person.open("twin-a")
    loss = person.page.locator("#scalars [id=scalar-loss] data")
    expect(loss).to_be_visible(timeout=60_000)
    shown = float(loss.get_attribute("value") or "nan")
    return f"loss {shown:.4g} at step 79", abs(shown - before) < 1e-6


def sweep(world: World, person: Person) -> tuple[str, bool]:
    """Find the best setting of eight runs, at the pace of a person."""
    page = person.page
    began = time.monotonic()
    person.press("/")
    person.type("tag:sweep")
    expect(page.locator("tr[data-run]")).to_have_count(8)
    person.pace_s = PACE_S
    try:
        person.click(page.get_by_role("columnheader", name="Loss").get_by_role("link"))
        expect(page.locator("th[aria-sort=ascending]")).to_have_text("Loss")
        page.wait_for_timeout(PACE_S * 1000)  # reads the first row
        heads = [each.strip() for each in page.locator("thead tr").first.locator("th, td").all_inner_texts()]
        cells = [each.strip() for each in page.locator("tr[data-run]").first.locator("th, td").all_inner_texts()]
    finally:
        person.pace_s = 0.0
    row = dict(zip(heads, cells, strict=False))
    took = time.monotonic() - began
    found = float(row["lr"].split()[-1]), int(row["width"].split()[-1])
    return f"lr {found[0]:g}, width {found[1]}, after {took:.1f} s", found == world.best and took < 60


def four_ranks(world: World, person: Person) -> tuple[str, bool]:
    """Open the ranks of a run, and choose a value of the batch."""
    planted = world.planted["ranks"]
    row = person.page.locator("tr[data-run]").filter(has=person.page.locator(".where", has_text="4 ranks"))
    person.click(row.locator("a.where"))
    table = person.page.locator("#layer-spreads tbody tr").first
    expect(table).to_be_visible()
    links = person.page.locator("#layer-spreads tbody a[href*='#rank-']").all_inner_texts()
    odd = [text.removeprefix("rank ") for text in links]
    right = bool(odd) and set(odd) == {str(planted["rank"])}
    return f"the odd rank by layer: {', '.join(sorted(set(odd))) or 'none'}", right


def late_rank(world: World, person: Person) -> tuple[str, bool]:
    """Read on the page Problems of all ranks which one keeps the others waiting."""
    row = person.page.locator("tr[data-run]").filter(has=person.page.locator(".where", has_text="2 ranks"))
    person.click(row.locator(".alerts a"))
    line = person.said("#list .message")
    found = re.match(r"rank (\d+) is late", line)
    return line, found is not None and int(found[1]) == world.planted["late"]["rank"]


def unused_expert(world: World, person: Person) -> tuple[str, bool]:
    """Read which experts no token has chosen, and which modules never ran."""
    person.click(person.row("experts").locator(".alerts a"))
    line = person.said("#list")
    expert = world.planted["experts"]["expert"]
    found = re.search(r"no token has chosen (experts? .*? of \d+)", line)
    ran = f"never ran, so they don't learn: mixture.experts.{expert}" in line
    return f"{found[0] if found else line[:160]}", found is not None and str(expert) in found[1] and ran


def tokens(world: World, person: Person) -> tuple[str, bool]:
    """Find the attention maps of a run that has ended, whose script named no tokens."""
    page = person.page
    person.open("experts")
    person.press("g", "t")
    person.press("/")
    person.type("attention")
    person.click(page.locator("#kept a", has_text="attention activation [1]").first)
    expect(page.locator("#view option:checked")).to_have_text(re.compile("attention"))
    expect(page.locator("#panes canvas.tiles")).to_be_visible()
    words = page.get_by_text("Tokens: ids of the batch, read by itos of the script.")
    expect(words).to_be_visible()
    return f"{person.said('#view option:checked')}. {' '.join(words.inner_text().split())}", True


def matters(world: World, person: Person) -> tuple[str, bool]:
    """Filter the runs of a sweep, and open the page about its settings."""
    person.press("/")
    person.type("tag:sweep")
    expect(person.page.locator("tr[data-run]")).to_have_count(8)
    person.page.wait_for_url(re.compile("f=tag%3Asweep|f=tag:sweep"))
    person.click(person.page.get_by_role("link", name=re.compile("^Best run")))
    lead, first = person.said(".verdict"), person.said("#sweep tbody tr")
    return f"{lead} Settings: {first}", f"lr {world.best[0]:g} is best of 8" in lead and first.startswith("lr ")


def distribution(world: World, person: Person) -> tuple[str, bool]:
    """Type a layer's name into the search, and read the distribution of its activation."""
    page = person.page
    person.open("live")
    person.press("Control+k")
    person.type("features.2")
    expect(page.get_by_role("group", name="Layers").get_by_role("option").first).to_be_visible()
    person.press("Enter")
    expect(page.locator("#distributions .chart").first).to_be_visible()
    return person.said("h1"), "features.2" in person.said("h1")


def updates(world: World, person: Person) -> tuple[str, bool]:
    """Choose the updates on Flow, which nobody asked for: their size in each layer, relative to the weights."""
    page = person.page
    person.open("sigmoids")
    person.press("g", "f")
    person.choose(page.get_by_label("Kind").first, "update")
    page.wait_for_url(re.compile("kind=update"))
    expect(page.locator("#flow canvas, #flow svg").first).to_be_visible()
    return "updates of all layers on Flow", True


def rule(world: World, person: Person) -> tuple[str, bool]:
    """Find the rule by the search, and try another threshold."""
    page = person.page
    person.open("sigmoids")
    person.press("g", "u")
    field = page.locator("#loss-spike-factor")
    expect(field).to_be_visible()
    person.click(field)
    person.press("Control+a")
    person.type("20")
    person.click(page.locator("#rule-loss-spike [data-do=preview]"))
    said = page.locator("[data-part=preview]").first
    expect(said).to_contain_text("This would find")
    return " ".join(said.inner_text().split())[:120], True


def annotate(world: World, person: Person) -> tuple[str, bool]:
    """Write a note about a step."""
    page = person.page
    person.open("sigmoids")
    person.press("#")
    person.type("40")
    person.press("Enter")
    page.wait_for_url(re.compile("step=40"))
    person.press("m")
    expect(page.locator("dialog textarea")).to_be_focused()
    person.type("warm-up ends")
    person.click(page.get_by_role("button", name="Save"))
    expect(page.locator("dialog[open]")).to_have_count(0)
    noted = world.site.get(f"annotations?run={world.id_of('sigmoids')}")
    return "warm-up ends, at step 40", "warm-up ends" in json.dumps(noted)


def pin(world: World, person: Person) -> tuple[str, bool]:
    """Pin the loss, and find it under Pinned."""
    page = person.page
    person.open("sigmoids")
    person.click(page.locator("#chart").get_by_role("button", name=re.compile("^Actions")))
    person.click(page.get_by_role("menuitem", name="Pin", exact=True))
    expect(page.locator("#toasts")).to_contain_text("Pinned")
    person.press("g", "b")
    expect(page.locator("#charts figure")).to_have_count(1)
    return person.said("#charts figure h2, #charts figure header"), True


def report(world: World, person: Person) -> tuple[str, bool]:
    """Download the report."""
    person.open("sigmoids")
    with person.page.expect_download() as waiting:
        person.click(person.page.get_by_role("link", name="Report", exact=True))
    text = waiting.value.path().read_text()
    return f"{len(text) / 1e6:.1f} MB of HTML, without a script from elsewhere", "sigmoids" in text


def tensor(world: World, person: Person) -> tuple[str, bool]:
    """Capture a tensor of a layer in the next step."""
    page = person.page
    person.open("live")
    person.press("g", "t")
    person.click(page.locator("#ask").get_by_label("Module"))
    person.type("encoder.layers.1.linear1")
    before = int(world.site.run("live")["newest_step"])
    person.click(page.get_by_role("button", name="Capture next step"))
    title = page.locator("#viewer-title")
    expect(title).to_contain_text("encoder.layers.1.linear1", timeout=60_000)
    expect(page.locator("#kept [aria-current]")).to_contain_text("encoder.layers.1.linear1")
    kept = person.said("#kept [aria-current]")
    step = re.search(r"step ([\d,]+)", kept)
    return kept, step is not None and int(step[1].replace(",", "")) >= before


def words(world: World, person: Person) -> tuple[str, bool]:
    """Search for the words that people use."""
    page = person.page
    person.open("sigmoids")
    found = []
    for word in ("expert", "rank", "learning rate"):
        person.press("Control+k")
        person.type(word)
        option = page.locator("#palette-list [role=option]").first
        expect(page.get_by_role("group", name="Help").get_by_role("option").first).to_be_visible()
        found.append(" ".join(option.inner_text().split()))
        person.press("Escape", "Escape")
        expect(page.locator("dialog.palette")).to_have_count(0)  # no person is as quick as that
    return "; ".join(found), len(found) == 3


TASKS: Final = {
    "nan": Task("Which layer made the first NaN, and when", "1", ("nan",), first_nan),
    "why": Task("Why: operator, line, and sample", "3, not answered", ("nan",), why),
    "vanishing": Task("Where does the gradient vanish", "2, denied by Overview", ("sigmoids",), vanishing),
    "rate": Task("Is the learning rate too high", "dead end", ("rate",), learning_rate),
    "compare": Task("Where do two runs differ first", "3, verdict unsafe", ("twins",), compare),
    "features": Task("Feature maps of a convolution, live", "4", ("live",), feature_map),
    "attention": Task("Attention maps, live", "3", ("live",), attention),
    "step": Task("Step back to 120, look at four pages", "edit each address", ("sigmoids",), back_to_a_step),
    "zoom": Task("Zoom one chart; do the others follow", "1 drag, one page only", ("sigmoids",), zoom),
    "only": Task("The attention layers only", "1 and typing, not the table", ("live",), only_attention),
    "share": Task("Share a link to what I see", "1", ("live",), share),
    "pandas": Task("The loss into pandas", "code by hand", ("sigmoids",), pandas),
    "capture": Task("Change what is captured, live", "4", ("live",), change_capture),
    "cost": Task("What does hookcore cost", "1 to 3, lost", ("live",), cost),
    "phone": Task("All pages on a phone", "sideways scrolling", ("live",), phone),
    "notebook": Task("The loss in a notebook's cell", "0, beside a sidebar", (), notebook),
    "keyboard": Task("A finding with the keyboard only", "keys to learn", ("nan",), keyboard),
    "crashed": Task("Why did a run crash", "1, not answered", ("crash",), crashed),
    "sweep": Task("The best of eight runs of a sweep", "impossible", ("sweep",), sweep),
    "matters": Task("Why is it the best: which setting matters", "not answered", ("sweep",), matters),
    "late": Task("Which rank keeps the others waiting", "2, not a problem", ("late",), late_rank),
    "experts": Task("Which experts are never used", "2, as not captured", ("experts",), unused_expert),
    "tokens": Task("Attention maps with their tokens, after the end", "only live, no tokens", ("experts",), tokens),
    "ranks": Task("Which of four ranks is different", "impossible", ("ranks",), four_ranks),
    "distribution": Task("The distribution of a layer's values", "keys", ("live",), distribution),
    "updates": Task("The updates of all layers", "another training", ("sigmoids",), updates),
    "rule": Task("Another threshold for a rule", "4 and scrolling", ("sigmoids",), rule),
    "annotate": Task("A note about a step", "2", ("sigmoids",), annotate),
    "pin": Task("Pin a chart", "2", ("sigmoids",), pin),
    "report": Task("The report of a run", "1", ("sigmoids",), report),
    "tensor": Task("Capture a tensor now", "3", ("live",), tensor),
    "words": Task("Search for expert, rank, learning rate", "not found", ("sigmoids",), words),
    "week": Task("A run of last week", "only by a command", ("twins",), last_week),
}


def prepare(world: World, tasks: Sequence[str]) -> None:
    """Run the trainings that the tasks need."""
    needs = {each for name in tasks for each in TASKS[name].needs}
    if "live" in needs:
        world.site.train("live", "--pause", "0.3")
    for case in CASES:
        if case in needs:
            print(f"training: {case}", file=sys.stderr, flush=True)
            world.train(case)
    if "sweep" in needs:
        world.sweep()
    if "live" in needs:
        world.site.run("live", 5)


def perform(world: World, tasks: Sequence[str]) -> int:
    """Do the tasks and print a line for each. Return how many were not answered."""
    context = world.browser.new_context(viewport=WIDE, permissions=list(RIGHTS))
    context.set_default_timeout(60_000)
    page = context.new_page()
    failures = 0
    print("| task | clicks | keys | answer | right | before |\n|---|---|---|---|---|---|")
    for name in tasks:
        task = TASKS[name]
        person = Person(page, world.site.url)
        person.home()
        try:
            answer, right = task.do(world, person)
        except Exception as error:  # the other tasks are still done
            answer, right = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", False
        failures += not right
        cells = (
            task.words,
            person.clicks,
            person.keys,
            answer.replace("|", "\\|"),
            "yes" if right else "**no**",
            task.then,
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    context.close()
    return failures


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the tasks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    given = parser.parse_args(arguments)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, running(Path(folder)) as site, chromium() as browser:
        world = World(site, browser)
        prepare(world, given.only)
        sys.exit(min(1, perform(world, given.only)))


if __name__ == "__main__":
    main()
