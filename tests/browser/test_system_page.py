"""The System page in a browser: charts of real samples, live and held, and the link from the Overview."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from .browsing import choose
from .conftest import Open, Paths
from .site import Site


@pytest.fixture(scope="module")
def gpus(site: Site) -> dict[str, Any]:
    """Return a run whose trainer seems to have two GPUs."""
    site.train("gpus", "--gpus", "--steps", "60", "--pause", "0.05")
    return site.run("gpus", 60, "ended")


def test_the_machine_of_a_run_with_gpus_is_drawn_over_its_steps(visit: Open, gpus: dict[str, Any]) -> None:
    with visit() as tab:
        tab.goto(f"runs/{gpus['id']}")
        line = tab.page.locator("#machine")
        speed, time = r"[\d.,]+ samples/s, [\d.]+ .B of memory", r"[\d.]+ .?s for step \d+, \d+% of it [a-z ]+"
        expect(line).to_contain_text(re.compile(f"^GPU 0 87%, {speed}, {time}$"))
        line.click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Performance")
        sampled = tab.page.locator("#newest").get_attribute("data-plans") or ""
        expect(tab.page.locator("#charts h2")).to_have_text(
            [
                "GPU utilization, %",
                "GPU power, W",
                "GPU temperature, °C",
                "Memory of GPU 0, GB",
                "Memory of GPU 1, GB",
                "Samples per second",
                "Step time, ms",
                "Steps per second",
                "CPU: busy cores",
                "Memory in use, GB",
                *(["Disks, MB per second"] if "disk/" in sampled else []),
                *(["Network, MB per second"] if "network/" in sampled else []),
            ]
        )
        chart = tab.page.locator("#chart-gpu-utilization")
        expect(chart.locator(".js-plotly-plot .scatterlayer .trace")).to_have_count(2)
        expect(chart).to_contain_text(re.compile(r"GPU 0\s*87"))
        memory = tab.page.locator("#chart-gpu0-memory")
        choose(memory, "Show as table")
        expect(memory.locator("table")).to_contain_text("21.47")
        assert tab.axe() == []
        tab.check()


def test_a_held_page_has_the_values_of_its_step(visit: Open, gpus: dict[str, Any]) -> None:
    with visit() as tab:
        tab.goto(f"runs/{gpus['id']}/performance")
        newest = tab.page.locator("#newest")
        sampled = re.search(r"up to step (\d+)", newest.inner_text())
        assert sampled is not None
        tab.page.get_by_label("Step", exact=True).fill(sampled[1])
        tab.page.keyboard.press("Enter")
        expect(newest).to_contain_text(f"Sampled in step {sampled[1]}.")
        tab.goto(f"runs/{gpus['id']}/performance?steps=0-{int(sampled[1])}")
        drawn = tab.page.locator("#chart-cpu")
        drawn.scroll_into_view_if_needed()  # charts are drawn when they come into view
        expect(drawn.locator(".js-plotly-plot")).to_be_visible()
        tab.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Summary").click()
        expect(tab.page).to_have_url(re.compile(rf"steps=0-{sampled[1]}"))


def test_new_samples_of_a_live_run_appear_automatically(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["overview"])
        tab.page.keyboard.press("g")
        tab.page.keyboard.press("o")
        newest = tab.page.locator("#newest")
        expect(newest).to_contain_text("sampled up to step")
        before = newest.locator("> p").first.inner_text()
        drawn = tab.page.locator("#chart-memory")
        drawn.scroll_into_view_if_needed()  # charts are drawn when they come into view
        expect(drawn.locator(".js-plotly-plot")).to_be_visible()
        step = drawn.inner_text()
        expect(newest.locator("> p").first).not_to_have_text(before, timeout=20_000)
        expect(drawn).not_to_have_text(step, timeout=20_000)
        assert tab.page.locator("#chart-gpu-utilization").count() == 0
        tab.check()
