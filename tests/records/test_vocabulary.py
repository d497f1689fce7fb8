"""One word, one color, and one rule for each thing, wherever it is shown."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from hookcore.findings import key_figures_of
from hookcore.reading import StoreReader
from hookcore.records import APART, KINDS, Tap
from hookcore.records import ROOT as ROOT_NAME
from hookcore.records.vocabulary import (
    ELAPSED,
    KIND_TITLES,
    KIND_WORDS,
    NAN_COLOR,
    is_loss,
    loss_among,
    loss_rank,
    rgb_of,
)
from hookcore_app.analysis.figures import LIGHT
from hookcore_app.analysis.tiles import colors_of
from hookcore_app.pages.views.overview import scalar_lines
from tests.api_world import TAPS, World, make_frame, open_run
from tests.inside import class_of
from tests.manual import ROOT

LOGGED = {"accuracy": 0.5, "aux_loss": 3.0, "hookcore/loss": 9.0, "lossless": 2.0, "train/loss": 1.0}


@pytest.fixture
def world() -> World:
    return World()


def _log(world: World, name: str, started_s: float = 0.0) -> None:
    run = open_run(world.runs, name, started_s=started_s)
    for step in range(3):
        run.store.append(
            make_frame(step, [1.0] * len(TAPS) if step == 0 else [], new_taps=TAPS if step == 0 else (), scalars=LOGGED)
        )
    run.changes.tell()


def test_the_same_scalar_is_the_loss_everywhere(world: World) -> None:
    _log(world, "two", 5.0)
    run = world.runs.get("two")
    assert run is not None
    loss = key_figures_of(run.store).loss
    assert loss is not None
    assert loss.name == "train/loss"
    assert scalar_lines(run, None, None)[0][0].name == "train/loss"
    assert "train/loss 1" in class_of("facts_of", "watcher")(StoreReader(run.store)).figures
    _log(world, "three", 4.0)
    assert 'data-name="train/loss"' in world.client.get("/compare?a=two&b=three").text


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        ("loss", True),
        ("train/Loss", True),
        ("aux_loss", True),
        ("loss/lr", False),
        ("hookcore/loss", False),
        ("lr", False),
    ],
)
def test_a_loss_is_recognized_by_the_last_part_of_its_name(name: str, yes: bool) -> None:
    assert is_loss(name) is yes
    assert (loss_rank(name) < 5) is yes


def test_nan_has_one_color_in_pictures_charts_and_pages() -> None:
    assert tuple(colors_of(np.array([[np.nan, 1.0]]))[0, 0]) == rgb_of(NAN_COLOR)
    assert LIGHT.nan == NAN_COLOR
    for style in ("static/app.css", "templates/report/style.css"):
        assert f"--nan: {NAN_COLOR};" in (ROOT / "app" / style).read_text(), style


def test_every_kind_has_a_description() -> None:
    assert tuple(KIND_WORDS) == tuple(KIND_TITLES) == KINDS


def test_one_tensor_and_several_have_the_same_term() -> None:
    assert KIND_TITLES["output"] == "activations"
    assert KIND_TITLES["raw_grad"] == "gradients of weights before clipping"
    for kind in set(KINDS) - APART:
        of, is_gradient = kind.removesuffix("_grad"), kind.endswith("_grad")
        assert KIND_WORDS[kind] == KIND_TITLES[of].removesuffix("s") + " gradient" * is_gradient


def test_a_label_names_the_root_and_equals_the_scripts() -> None:
    tap = Tap("", "output", "1", 2, "eval")
    assert (tap.label, tap.name) == (
        "(root) output [1] call 2 (eval)",
        "(root) [1] call 2 (eval)",
    )  # as in heat.test.mjs


def test_the_name_of_the_root_is_written_once_in_python_and_once_in_scripts() -> None:
    files = [file for folder in ("hookcore", "app") for file in (ROOT / folder).rglob("*.py")]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    trees = {name: ast.parse(text) for name, text in texts.items() if ROOT_NAME in text}
    found = {
        name
        for name, tree in trees.items()
        if any(isinstance(node, ast.Constant) and node.value == ROOT_NAME for node in ast.walk(tree))
    }
    scripts = (ROOT / "app/static/js").rglob("*.js")
    found |= {file.name for file in scripts if f'"{ROOT_NAME}"' in file.read_text()}
    assert found == {"hookcore/records/__init__.py", "vocabulary.js"}


def test_every_shown_label_finds_its_tap(world: World) -> None:
    for number, tap in enumerate(TAPS):
        fitting = [each for each in TAPS if each.name == tap.name]
        for label in (tap.label, *((tap.name,) if len(fitting) == 1 else ())):
            [series] = world.json("series", tap=label, stat="rms")["series"]
            assert (series["tap"]["number"], series["tap"]["label"]) == (number, tap.label)


ODD = (
    Tap("layers.0 [b] output", "output", "c] call 2"),
    Tap("layers.0 [b] output", "input"),
    Tap("my layer", "output", "a, b", 3),
    Tap("\u0436.'quoted\"", "output_grad", "[0]", phase="eval"),
    Tap("!is:root", "param", "re:*?"),
)


@pytest.mark.parametrize("tap", ODD, ids=lambda tap: tap.module)
def test_whatever_a_module_is_called_every_shown_name_of_its_tap_finds_it(world: World, tap: Tap) -> None:
    world.run.store.announce(ODD)
    number = len(TAPS) + ODD.index(tap)
    for label in (tap.label, tap.words, tap.name):
        for path in ("series", "histograms", "latest"):
            asked = {"stat": "rms"} if path != "histograms" else {}
            assert world.client.get(f"/api/v1/{path}", params={"tap": label, **asked}).status_code == 200
        assert world.json("series", tap=label, stat="rms")["series"][0]["tap"]["number"] == number


def test_an_ambiguous_label_without_a_kind_gets_the_labels_of_the_taps(world: World) -> None:
    world.run.store.announce((Tap("both", "output"), Tap("both", "output_grad")))
    said = world.error("series", 400, tap="both", stat="rms")
    assert "'both output' (5)" in said
    assert "'both output_grad' (6)" in said


def test_the_duration_of_a_step_has_one_name() -> None:
    for page in ("frameworks", "store"):
        assert f"`{ELAPSED}`" in (ROOT / "docs" / f"{page}.md").read_text()
    assert "`hookcore/time_s`" not in (ROOT / "docs" / "frameworks.md").read_text()


def test_the_loss_of_the_first_optimizer_is_used_if_several_are_found() -> None:
    assert loss_among(["lr", "q_loss", "backward/loss2", "backward/loss"]) == "backward/loss"
    assert loss_among(["q_loss", "backward/loss2"]) == "backward/loss2"
