"""`hookcore coordcheck` says which layers keep a learning rate from transferring to larger models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookcore.commands import scaling
from hookcore.errors import ArgumentError
from hookcore_app import cli
from hookcore_app.serving import server_thread
from tests.serving import make_world

WIDTHS = (32, 64, 128, 256)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the runs in this process."""
    monkeypatch.setenv("HOOKCORE_SERVER", "none")
    monkeypatch.setenv("HOOKCORE_KEEP", "none")


def check(case: str, axis: scaling.Axis = "width", sizes: tuple[int, ...] = WIDTHS, steps: int = 2) -> scaling.Checked:
    return scaling.check(f"benchmarks.coordcheck:{case}", axis, sizes, steps, range(3), "sizes")


def blamed(found: scaling.Checked) -> set[tuple[str, str]]:
    return {(each.layer, each.what) for each in found.judged if each.verdict in ("grows", "shrinks")}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_whose_rates_and_weights_go_with_the_width_as_they_should_is_flat(optimizer: str) -> None:
    found = check(f"mlp_mup_{optimizer}", sizes=(64, 128, 256, 512))
    assert (found.verdict, blamed(found)) == ("flat", set())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("mlp_mup_adam_rate", {("hidden.0", "change")}),
        ("mlp_mup_adam_bias", {("hidden.0", "change")}),
        ("mlp_mup_adam_init", {("hidden.0", "start")}),
        ("mlp_mup_adam_readout", {("head", "start"), ("head", "readout")}),
    ],
)
def test_a_layer_that_does_not_go_with_the_width_is_blamed_alone(case: str, expected: set[tuple[str, str]]) -> None:
    found = check(case)
    assert (found.verdict, blamed(found)) == ("not flat", expected)


@pytest.mark.usefixtures("alone")
def test_one_rate_for_all_layers_is_not_flat_although_the_outputs_start_flat() -> None:
    found = check("mlp_standard_adam")
    assert {layer for layer, _ in blamed(found)} == {"hidden.0", "hidden.1", "head"}
    first = [fits[0] for fits in found.outputs.values()]
    assert all(fit is not None and fit.verdict() != "grows" for fit in first)
    assert "`hidden.0`: what training its weight changes in its output grows as width^" in found.text
    assert "divide the learning rate of its weight by width" in found.text


@pytest.mark.usefixtures("alone")
def test_attention_whose_scores_grow_with_the_width_is_blamed() -> None:
    assert blamed(check("gpt_mup_adam_attention", sizes=(16, 32, 64), steps=1)) >= {
        ("blocks.0.attention", "scores"),
        ("blocks.1.attention", "scores"),
    }


@pytest.mark.usefixtures("alone")
def test_a_branch_that_adds_as_much_in_each_of_many_blocks_is_blamed() -> None:
    found = check("gpt_mup_adam_branch", "depth", (2, 4, 8), steps=1)
    assert ("blocks.*.mlp", "branch") in blamed(found)
    assert ("blocks.*.attention", "branch") not in blamed(found)


def test_an_exponent_that_may_be_right_or_wrong_is_unknown_and_never_flat() -> None:
    exact = [(size, seed, 0.5 * size**0 + seed) for size in (64, 128, 256) for seed in range(3)]
    fit = scaling.Fit.of(exact)
    assert fit is not None
    assert (fit.verdict(), round(fit.exponent, 6)) == ("flat", 0.0)
    noisy = [(size, seed, value + 0.8 * (-1) ** (seed + index)) for index, (size, seed, value) in enumerate(exact)]
    uncertain = scaling.Fit.of(noisy)
    assert uncertain is not None
    assert uncertain.verdict() == "unknown"
    assert scaling.Fit.of([(64, 0, 1.0), (128, 0, 1.0)]) is None


@pytest.mark.usefixtures("alone")
def test_too_few_sizes_are_an_error_that_says_how_many_are_needed() -> None:
    with pytest.raises(ArgumentError, match=r"2 widths are too few: give at least 3"):
        check("mlp_mup_adam", sizes=(64, 128))


USER = """
import torch
from torch import nn
def no_optimizer(width):
    return nn.Linear(4, width)
def no_loss(width):
    model = nn.Linear(4, width)
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.ones(3, 4)
def no_width():
    return None
"""


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_optimizer", "must return a model, its optimizer, and a batch"),
        ("no_loss", "returned no single number for its batch"),
        ("no_width", "unexpected keyword argument 'width'.*take width by keyword"),
    ],
)
def test_a_function_that_makes_something_else_is_an_error_that_says_what_it_must_return(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "makers_of_a_user.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArgumentError, match=words):
        scaling.check(f"makers_of_a_user:{name}", "width", WIDTHS, 1, range(1), "sizes")


def test_the_command_prints_json_exits_with_the_verdict_and_saves_its_runs_as_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("HOOKCORE_SERVER", "HOOKCORE_KEEP", "HOOKCORE_GROUP"):
        monkeypatch.setenv(variable, "none")  # so that what the command sets is undone
    function = ["benchmarks.coordcheck:mlp_mup_adam_rate", "--widths", "32,64,128", "--steps", "1", "--seeds", "2"]
    saved = ["--server", "none", "--keep", str(tmp_path), "--group", "widths"]
    assert cli.main(["coordcheck", *function, *saved, "--json"]) == scaling.CODES["not flat"]
    found = json.loads(capsys.readouterr().out)
    _expect_picture(found, tmp_path)
    assert {each["layer"] for each in found["judged"] if each["verdict"] == "grows"} == {"hidden.0"}
    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {(run["group"], *run["tags"], run["config"]["width"]) for run in runs} == {
        ("widths", "coordcheck", width) for width in (32, 64, 128)
    }


def _expect_picture(found: Any, folder: Path) -> None:
    """Look at the page of a group of saved runs, which shows the figure that the last of them has logged."""
    client = make_world(keep=str(folder)).client
    page = client.get("/group", params={"f": "group=widths"}, headers={"Accept": "text/html"}).text
    place = re.search(r'id="picture".*?data-figure="(\d+)" data-run="([^"]+)"', page, re.DOTALL)
    assert place is not None
    (trace,) = client.get(f"/api/v1/media/{place[1]}", params={"run": place[2]}).json()["data"]
    layers = {layer or "(root)": fits for layer, fits in found["outputs"].items()}
    assert trace["y"] == list(layers)
    assert trace["x"] == ["step 0"]
    assert trace["z"] == [[pytest.approx(fits[0]["exponent"])] for fits in layers.values()]
    assert trace["text"][0] == [f"{trace['z'][0][0]:.2f}"]
    other = client.get("/group", params={"f": "group=others"}, headers={"Accept": "text/html"}).text
    assert "data-figure" not in other


ATTENTION = """
import torch
from torch import nn

def attention(width):
    model = nn.Sequential(nn.Linear(4, width), nn.TransformerEncoderLayer(width, 4, width, batch_first=True))
    inputs = torch.randn(4, 8, 4)
    return model, torch.optim.Adam(model.parameters(), 1e-3), lambda: model(inputs)[..., :4].square().mean()
"""


@pytest.mark.usefixtures("alone")
def test_weights_of_a_module_that_is_not_called_are_those_of_the_layer_that_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attention_of_a_user.py").write_text(ATTENTION)
    monkeypatch.syspath_prepend(tmp_path)
    found = scaling.check("attention_of_a_user:attention", "width", (16, 32, 64), 1, range(2), "sizes")
    judged = {(each.layer, each.parameter) for each in found.judged if each.what == "change"}
    assert ("1.self_attn", "out_proj.weight") in judged
    assert (found.still, found.unseen) == ([], [])


CURVED = """
import torch
from torch import nn

def curved(lr, width=1, depth=1):
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    curves = torch.tensor([1.0, 0.3]) * len(range(width * depth)) ** POWER  # whole numbers
    optimizer = torch.optim.SGD(model.parameters(), lr)
    return model, optimizer, lambda: (model(torch.eye(2)).flatten().square() * curves).sum() / 2
"""


@pytest.fixture
def curved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Return a function that makes a parabola, with which SGD diverges above a rate of 2 / width^power."""

    def make(power: int) -> str:
        (tmp_path / f"curved_{power}.py").write_text(f"POWER = {power}\n{CURVED}")
        monkeypatch.syspath_prepend(tmp_path)
        return f"curved_{power}:curved"

    return make


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("axis", "power", "verdict", "exponent"),
    [("width", 0, "flat", 0.0), ("width", 1, "not flat", -1.0), ("depth", 1, "not flat", -1.0)],
)
def test_a_sweep_says_whether_the_best_rate_transfers(
    axis: scaling.Axis, power: int, verdict: str, exponent: float, curved: Callable[[int], str]
) -> None:
    rates = [10 ** (each / 4) for each in range(-8, 4)]
    swept = scaling.sweep(curved(power), rates, axis, (2, 4, 8), 10, range(1), "rates")
    assert swept.fit is not None
    assert swept.verdict == verdict
    assert f"{axis} 8: the best rate is" in swept.text
    assert f"goes as {axis}^" in swept.text
    assert swept.fit.exponent == pytest.approx(exponent, abs=0.2)


@pytest.mark.usefixtures("alone")
def test_a_sweep_says_between_which_rates_training_becomes_unstable(curved: Callable[[int], str]) -> None:
    swept = scaling.sweep(curved(0), [0.1, 1.0, 10.0], "width", (), 20, range(2), "rates")
    (found,) = swept.sizes
    stable, unstable = found.stable
    assert stable is not None
    assert unstable is not None
    assert stable < 2.0 < unstable < stable * 1.8
    assert "10 diverged in 2 of 2" in swept.text


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0, 0, 1)])
def test_an_exponent_is_unknown_if_most_trainings_have_diverged(seeds: tuple[int, int, int]) -> None:
    assert scaling.Fit.of([(size, seed, 1.0) for size, seed in zip((2, 4, 8), seeds, strict=True)]) is None


@pytest.mark.usefixtures("alone")
def test_a_low_rate_whose_losses_differ_by_batch_has_not_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = CURVED.replace("/ 2", "/ 2 + 0.05 * torch.randn(())")
    (tmp_path / "noisy.py").write_text(f"POWER = 0\n{noisy}")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = scaling.sweep("noisy:curved", [1e-6, 1e-3, 0.1, 1.0, 10.0], "width", (), 20, range(5), "rates").sizes
    stable, unstable = found.stable
    assert stable is not None
    assert unstable is not None
    assert 1.0 <= stable < 2.0 < unstable


@pytest.mark.usefixtures("alone")
def test_a_best_rate_at_the_end_of_what_was_tried_is_unknown(curved: Callable[[int], str]) -> None:
    swept = scaling.sweep(curved(0), [0.001, 0.003, 0.01], "width", (), 10, range(1), "rates")
    assert swept.verdict == "unknown"
    assert "the best rate is unknown, because the lowest loss is at the end" in swept.text
    assert "the largest stable rate is at least 0.01, and none that was tried diverged" in swept.text


@pytest.mark.parametrize(
    ("given", "words"),
    [("1..0.1", "use a range such as 1e-4..1"), ("0,1", "rates such as"), ("x", "is invalid")],
)
def test_rates_that_are_no_rates_are_an_error(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["lr-sweep", "train:make_model", "--rates", given])
    assert words in capsys.readouterr().err


def test_the_trainings_of_a_command_print_one_address_which_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], curved: Callable[[int], str]
) -> None:
    monkeypatch.setenv("HOOKCORE_SERVER", "thread")
    monkeypatch.setattr("hookcore.delivery.delivery.PORT", 0)
    try:
        swept = scaling.sweep(curved(0), [0.01, 0.1], "width", [], 3, range(2), "one-line")
    finally:
        server_thread.start(port=0).stop()
    assert swept.place is not None
    assert capsys.readouterr().err == f"hookcore: {swept.place}\n"
