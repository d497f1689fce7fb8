"""The machine over REST and on the System and Overview pages, read from a run's scalars and labels."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hookcore.records.vocabulary import (
    COST,
    CPU_MACHINE,
    CPU_PROCESS,
    EFFECTIVE_COST,
    FOLLOWING_COST,
    MACHINE_LABEL,
    MEMORY_PROCESS,
    SAMPLES_RATE,
    SENSORS_LABEL,
    STEPS_RATE,
    STRIDE,
    SYSTEM,
)
from tests.build import frame, make_info, stats_of
from tests.serving import make_world

HTML = {"Accept": "text/html"}
HOST = {CPU_PROCESS: 1.26, CPU_MACHINE: 2.0, MEMORY_PROCESS: 4.5e9, STEPS_RATE: 8.52, SAMPLES_RATE: 1272.4}
GPU = {"utilization": 87.0, "memory": 20e9, "allocated": 5e9, "reserved": 8e9, "power": 312.5, "temperature": 61.0}


def sampled(*samples: dict[str, float], labels: dict[str, str] | None = None) -> Any:
    """Return the client of a server with the run "one", in which every tenth step has a sample."""
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    for step in range(10 * len(samples)):
        scalars = {"loss": 1.0} | ({} if step % 10 else samples[step // 10])
        run.store.append(frame(step, stats_of(0), scalars=scalars, labels=labels or {} if not step else {}))
    return world.client


def text_of(client: Any, path: str) -> str:
    """Return the words of a page."""
    answer = client.get(path, headers=HTML)
    assert answer.status_code == 200
    main = answer.text.partition("<main")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", main)).replace(" ,", ",")


def gpu(index: int, **values: float) -> dict[str, float]:
    return {f"{SYSTEM}gpu{index}/{name}": value for name, value in values.items()}


def test_samples_are_scalars_of_the_api() -> None:
    client = sampled(HOST, HOST | {CPU_PROCESS: 0.5})
    names = client.get("/api/v1/scalars?run=one&match=hookcore/system/*").json()["names"]
    assert names == list(HOST)
    (series,) = client.get(f"/api/v1/scalars?run=one&name={CPU_PROCESS}").json()["series"]
    assert (series["first_step"], series["mean"]) == ([0, 10], [1.26, 0.5])


def test_the_page_shows_the_newest_values_or_those_of_the_held_step() -> None:
    labels = {MACHINE_LABEL: "4 cores, 16 GB of memory", f"{MACHINE_LABEL} gpu0": "NVIDIA H100, 80 GB"}
    client = sampled(HOST | gpu(0, **GPU), HOST | gpu(0, **GPU | {"utilization": 3.0}), labels=labels)
    text = text_of(client, "/runs/one/performance")
    assert "4 cores, 16 GB of memory GPU 0: NVIDIA H100, 80 GB" in text
    assert "sampled up to step 10." in text
    assert "GPU 0 3% 20 GB in use, 5 GB in tensors, 312 W, 61 °C" in text
    assert "CPU 1.3 cores 2.0 cores by all processes" in text
    assert "Samples per second 149" in text
    assert "Steps per second 1" in text
    held = text_of(client, "/runs/one/performance?step=0")
    assert "Sampled in step 0." in held
    assert "GPU 0 87%" in held
    between = text_of(client, "/runs/one/performance?step=9")
    assert "GPU 0 87%" not in between
    assert "The machine was not sampled in step 9." in between
    assert "The nearest sampled steps are 0 and 10." in between
    some = text_of(client, "/runs/one/performance?steps=0-9")
    assert "The values were sampled up to step 0, in steps 0 to 9." in some
    assert "GPU 0 87%" in some


def test_the_overview_summarizes_the_machine_in_one_line() -> None:
    own, asked = ("probe attention", "hookcore.probes.attention"), ("probe size", "script.size")
    labels = dict((own, asked, (MACHINE_LABEL, "4 cores, 16 GB of memory"), ("optimizer", "SGD")))
    page = sampled(HOST | gpu(0, **GPU), HOST | gpu(0, **GPU | {"utilization": 3.0}), labels=labels)
    text = text_of(page, "/runs/one")
    assert "GPU 0 3%, 149 samples/s, 4.5 GB of memory" in text
    assert "optimizer: SGD" in text
    assert "probe size: script.size" in text
    assert "probe attention" not in text  # older runs list what hookcore measures by itself
    assert "16 GB" not in text  # the System page shows the size of the machine
    assert "GPU 0 87%, 4.5 GB of memory" in text_of(page, "/runs/one?step=0")  # nobody knows when that step began
    assert "GPU 0 3%, 149 samples/s" in text_of(page, "/runs/one?step=10")
    assert "GPU 0" not in text_of(page, "/runs/one?step=9")
    assert "CPU 1.3 cores, 149 samples/s, 4.5 GB of memory" in text_of(sampled(HOST), "/runs/one")
    assert 'id="machine"' not in sampled({}).get("/runs/one", headers=HTML).text
    rates = {STEPS_RATE: 8.52, SAMPLES_RATE: 1272.4, MEMORY_PROCESS: 4.5e9}
    assert "149 samples/s, 4.5 GB of memory" in text_of(sampled(rates), "/runs/one")
    times = {f"{SYSTEM}time/forward": 0.03, f"{SYSTEM}time/backward": 0.01}
    assert "Time of step 0: 40 ms, 75% of it forward, 149 samples/s" in text_of(sampled(rates | times), "/runs/one")


def test_without_sensors_the_page_says_why_and_shows_what_torch_reserved() -> None:
    labels = {SENSORS_LABEL: "not read: the package nvidia-ml-py is not installed"}
    text = text_of(
        sampled(HOST | gpu(2, allocated=5e9, reserved=8e9, retries=3.0), labels=labels), "/runs/one/performance"
    )
    assert "GPU 2 8 GB reserved 5 GB in tensors, 3 allocator retries" in text
    assert "temperature are not read: the package nvidia-ml-py is not installed." in text


@pytest.mark.parametrize(
    ("samples", "query", "words"),
    [
        (({},), "", "sampled every two seconds"),
        ((), "", "The machine hasn't been sampled yet."),
        (({}, HOST), "?step=5", "The machine was not sampled in step 5."),
        ((HOST,), "?step=x&steps=y", "sampled up to step 0."),
    ],
)
def test_a_page_without_samples_says_what_will_appear(
    samples: tuple[dict[str, float], ...], query: str, words: str
) -> None:
    assert words in text_of(sampled(*samples), f"/runs/one/performance{query}")


def plans_in(page: str) -> list[dict[str, Any]]:
    """Return the charts that scripts draw."""
    found = re.search(r"data-plans='([^']*)'", page)
    assert found is not None
    plans: list[dict[str, Any]] = json.loads(found[1])
    return plans


def test_a_part_is_rendered_alone_with_the_charts_that_scripts_draw() -> None:
    part = sampled(HOST | {f"{SYSTEM}something/new": 1.0}).get("/runs/one/performance?part=newest", headers=HTML).text
    plans = plans_in(part)
    assert [plan["id"] for plan in plans] == ["samples", "steps", "cpu", "memory"]
    assert [line["words"] for line in plans[2]["parts"]] == ["this process", "all processes"]
    assert plans[3]["unit"] == 1e9
    assert "<main" not in part


def test_gpus_share_a_chart_of_each_sensor_in_the_order_of_their_numbers_and_have_one_each_for_their_memory() -> None:
    gpus = {f"{SYSTEM}{name}": 1.0 for name in ("gpu10/utilization", "gpu2/utilization", "gpu2/reserved", "gpu2/power")}
    plans = plans_in(sampled(gpus).get("/runs/one/performance", headers=HTML).text)
    assert [plan["title"] for plan in plans] == ["GPU utilization, %", "GPU power, W", "Memory of GPU 2, GB"]
    assert [line["words"] for line in plans[0]["parts"]] == ["GPU 2", "GPU 10"]


def test_the_parts_of_a_step_are_lines_of_one_chart_with_a_color_each() -> None:
    parts = {f"{SYSTEM}time/{name}": 0.002 for name in ("hookcore", "forward", "before", "loading")}
    plan, *_ = plans_in(sampled(parts).get("/runs/one/performance", headers=HTML).text)
    assert plan["title"] == "Step time, ms"
    assert [line["words"] for line in plan["parts"]] == ["data loading", "before the model", "forward", "hookcore"]
    assert len({line["color"] for line in plan["parts"]}) == 4


def test_the_time_of_a_step_needs_no_sample() -> None:
    times = {f"{SYSTEM}time/{name}": 0.002 for name in ("before", "forward", "backward", "optimizer", "other")}
    client = sampled(HOST | times, times, times, HOST | times)
    held = text_of(client, "/runs/one/performance?step=10")
    assert "Time of step 10: 10 ms" in held
    assert "The machine was not sampled in step 10." in held
    assert "The nearest sampled steps are 0 and 30." in held
    never = text_of(sampled(times), "/runs/one/performance")
    assert "Time of step 0: 10 ms" in never
    assert "The machine hasn't been sampled yet." in never
    assert "Time of step 0: 10 ms, 20% of it before the model" in text_of(sampled(times), "/runs/one")


def test_the_time_of_the_newest_measured_step_is_split() -> None:
    parts = {"before": 0.001, "forward": 0.003, "backward": 0.005, "optimizer": 0.0005, "other": 0.0005}
    times = {f"{SYSTEM}time/{name}": seconds for name, seconds in parts.items()}
    client = sampled(HOST | times | {f"{SYSTEM}time/hookcore": 0.01}, HOST | times | {f"{SYSTEM}rate/tokens": 4096.0})
    text = text_of(client, "/runs/one/performance")
    assert "Time of step 10: 10 ms before the model 10% 1 ms forward 30% 3 ms backward 50% 5 ms" in text
    assert "hookcore 10 ms" not in text  # that one is from another step
    assert "Tokens per second 481" in text
    held = text_of(client, "/runs/one/performance?step=0")
    assert "Time of step 0: 20 ms" in held
    assert "hookcore 10 ms" in held
    assert "“Before the model” is data loading, and everything else" in held
    bar = client.get("/runs/one/performance", headers=HTML).text.partition('class="shares"')[2].partition("</svg>")[0]
    assert '<rect class="share-backward" x="40.0%" width="50.0%"' in bar
    assert (
        "CPU 1.3 cores, 149 samples/s, 481 tokens/s, 4.5 GB of memory, 10 ms for step 10, 50% of it backward"
        in text_of(client, "/runs/one")
    )


def test_the_overview_names_the_longest_part_of_the_trainings_own_since_the_cost_of_watching_has_its_line() -> None:
    parts = {"before": 0.001, "forward": 0.006, "backward": 0.003, "hookcore": 0.03}
    client = sampled(HOST | {f"{SYSTEM}time/{name}": seconds for name, seconds in parts.items()})
    assert "40 ms for step 0, 15% of it forward" in text_of(client, "/runs/one")
    assert "hookcore 30 ms" in text_of(client, "/runs/one/performance")


def test_the_share_of_one_captured_step_is_not_taken_for_what_the_run_takes_longer() -> None:
    times = {f"{SYSTEM}time/forward": 0.063, f"{SYSTEM}time/hookcore": 0.037}
    costs = {COST: 0.6, EFFECTIVE_COST: 0.016, FOLLOWING_COST: 0.002, STRIDE: 64.0}
    client = sampled(HOST | times | costs)
    (line,) = re.findall(r'id="cost">.*?</p>', client.get("/runs/one", headers=HTML).text)
    words = re.sub(r"<[^>]+>", "", line)
    assert "hookcore adds 1.6% on average, " in words
    assert words.count("%") == 1, "one number, of which the page Performance shows the parts"
    page = text_of(client, "/runs/one/performance")
    assert "hookcore 37 ms" in page
    assert "37%" not in page, "the share of one step isn't the cost of the run"
    assert "This is one captured step, not the average of the run: see Cost of watching ." in page
    assert "On average adds 1.6% to the time of a step, over all steps, captured or not" in page
    assert "Capturing a step adds 60.0% to the time of this step" in page
    assert "Following a step adds 0.2% to the time of each step" in page
    assert "Captured steps every 64th step" in page
    assert "as measured last, not in step 0" in text_of(client, "/runs/one/performance?step=0")


def test_data_loading_is_the_first_part_and_is_distinguished_from_the_rest_before_the_model() -> None:
    parts = {"before": 0.001, "forward": 0.001, "backward": 0.002, "optimizer": 0.0, "other": 0.0, "loading": 0.006}
    client = sampled(HOST | {f"{SYSTEM}time/{name}": seconds for name, seconds in parts.items()})
    text = text_of(client, "/runs/one/performance")
    assert "Time of step 0: 10 ms data loading 60% 6 ms before the model 10% 1 ms forward" in text
    assert "“Data loading” is the time that it waited for a DataLoader. “Before the model” is everything else" in text
    assert "10 ms for step 0, 60% of it data loading" in text_of(client, "/runs/one")
    mostly_other = {f"{SYSTEM}time/{name}": seconds for name, seconds in (parts | {"other": 0.01}).items()}
    assert "20 ms for step 0, 50% of it other work" in text_of(sampled(HOST | mostly_other), "/runs/one")


def test_a_process_that_is_almost_idle_does_not_keep_zero_cores_busy() -> None:
    assert "CPU &lt;0.1 cores" in text_of(sampled(HOST | {CPU_PROCESS: 0.03}), "/runs/one/performance")
    assert "CPU 0.0 cores" in text_of(sampled(HOST | {CPU_PROCESS: 0.0}), "/runs/one/performance")
