"""Settings: accepted values, their stored form, and errors for invalid ones."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.config import LIVE, SETTINGS, Settings, bytes_of, nearest
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import TENSOR_KINDS, ModuleRecord
from hookcore_app.api.params import SettingsChanges
from tests.build import make_info
from tests.serving import World, make_batch, make_world

DOCS = Path(__file__).parents[2] / "docs"


class Linear:
    """Stands for the class of a module."""


def test_the_table_and_the_fields_name_the_same_settings() -> None:
    assert [field.name for field in dataclasses.fields(Settings)] == [setting.name for setting in SETTINGS]


def test_the_api_its_documentation_and_the_page_change_the_live_settings_of_the_table(world: World) -> None:
    names = {*LIVE, "paused"}
    assert set(SettingsChanges.model_fields) == names
    for page in ("http-api.md", "settings.md"):
        sentence = re.search(r"ou can change ([^.]*)", (DOCS / page).read_text("utf-8"))
        assert sentence is not None
        assert set(re.findall("`([a-z]+)`", sentence[1])) | {"paused"} == names, page
    world.take(make_batch(make_info("one"), [0]))
    form = world.client.get("/runs/one/capture").text
    assert {name for name in LIVE if name != "channels"} <= set(re.findall(r'name="([a-z]+)"', form))
    run = world.runs.get("one")
    assert run is not None
    run.store.describe([ModuleRecord("head", "Linear", "")])
    layer = world.client.get("/runs/one/model/layers?module=head").text
    assert 'id="capture-channels"' in layer


@pytest.fixture
def world() -> World:
    return make_world()


def test_defaults_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["folder/train.py"])
    settings = Settings.of({})
    assert dataclasses.asdict(settings) == {
        "include": (),
        "exclude": (),
        "kinds": frozenset({"output", "output_grad", "param_grad"}),
        "channels": (),
        "every": 1,
        "budget": 0.05,
        "allowance": 0.3,
        "memory": 512_000_000,
        "attach": "global",
        "compiled": "boundary",
        "phases": frozenset({"train"}),
        "calls": 8,
        "sketches": "auto",
        "sketch_values": 65536,
        "state_every": 50,
        "snapshot_every": 200,
        "server": "auto",
        "keep": "auto",
        "capsule": "auto",
        "capsule_on": frozenset({"nonfinite", "spike"}),
        "capsule_size": 1_000_000_000,
        "explain": "auto",
        "bridge": None,
        "bridge_layers": (),
        "notify": (),
        "rules": {"thresholds": {}, "functions": ()},
        "name": "train",
        "config": {"values": {}, "cut": 0},
        "tags": (),
        "group": "",
        "notes": "",
    }


def test_settings_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings.of().every = 2  # type: ignore[misc]


@pytest.mark.parametrize("default", SETTINGS, ids=lambda setting: setting.name)
def test_passing_a_default_is_the_same_as_passing_nothing(default: dataclasses.Field[object]) -> None:
    assert Settings.of({}, **{default.name: default.default}) == Settings.of({})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512MB", 512_000_000),
        ("1.5GiB", 1_610_612_736),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("1 tb", 10**12),
        (" 2 MiB ", 2 * 2**20),
        ("7B", 7),
    ],
)
def test_sizes_are_decimal_or_binary_by_their_unit(text: str, size: int) -> None:
    assert bytes_of(text) == size


@given(st.integers(min_value=2, max_value=10**6), st.sampled_from(["MB", "MiB", "GB", "GiB"]))
def test_a_size_and_its_number_of_bytes_are_the_same_setting(number: int, unit: str) -> None:
    assert Settings.of(memory=f"{number}{unit}") == Settings.of(memory=bytes_of(f"{number}{unit}"))


@pytest.mark.parametrize(
    ("argument", "given", "kept"),
    [
        ("include", "blocks.*", ("blocks.*",)),
        ("include", Linear, (Linear,)),
        ("include", ["a", Linear], ("a", Linear)),
        ("include", (name for name in "ab"), ("a", "b")),
        ("exclude", None, ()),
        ("exclude", [], ()),
        ("kinds", "output", frozenset({"output"})),
        ("kinds", TENSOR_KINDS, frozenset(TENSOR_KINDS)),
        ("phases", ["eval", "train"], frozenset({"train", "eval"})),
        ("every", np.int64(3), 3),
        ("budget", None, None),
        ("budget", 10, 10.0),
        ("budget", np.float32(0.5), 0.5),
        ("memory", 2_000_000, 2_000_000),
        ("attach", "module", "module"),
        ("compiled", "inside", "inside"),
        ("calls", 1, 1),
        ("sketch_values", None, None),
        ("state_every", 1, 1),
        ("snapshot_every", 1, 1),
        ("snapshot_every", None, None),
        ("sketches", "auto", "auto"),
        ("sketches", 4, 4),
        ("sketch_values", 1024, 1024),
        ("server", "thread", "thread"),
        ("server", "auto", "auto"),
        ("server", None, None),
        ("server", "http://localhost:8642", "http://localhost:8642"),
        ("server", "https://box/hookcore/", "https://box/hookcore"),
        ("server", "http://[::1]:8642", "http://[::1]:8642"),
        ("keep", "/runs", "/runs"),
        ("keep", Path("/runs/mine"), "/runs/mine"),
        ("name", "my run", "my run"),
    ],
)
def test_valid_values_are_stored_in_one_form(argument: str, given: object, kept: object) -> None:
    value = getattr(Settings.of(**{argument: given}), argument)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("include", 3),
        ("include", []),
        ("include", [Linear()]),
        ("exclude", [""]),
        ("exclude", ["  "]),
        ("exclude", [None]),
        ("kinds", ()),
        ("kinds", None),
        ("kinds", 3),
        ("kinds", [3]),
        ("kinds", "grad"),
        ("every", 0),
        ("every", -1),
        ("every", True),
        ("every", 1.0),
        ("every", "1"),
        ("budget", 0),
        ("budget", -0.1),
        ("budget", 10.1),
        ("budget", math.nan),
        ("budget", math.inf),
        ("budget", True),
        ("budget", "5%"),
        ("budget", []),
        ("memory", "512 MX"),
        ("memory", "much"),
        ("memory", "-1MB"),
        ("memory", "1MB"),
        ("memory", 5e9),
        ("memory", None),
        ("attach", "modules"),
        ("compiled", True),
        ("phases", "trian"),
        ("calls", 0),
        ("sketches", 0),
        ("sketches", True),
        ("sketches", "every"),
        ("sketches", None),
        ("sketch_values", 1023),
        ("sketch_values", 0),
        ("state_every", 0),
        ("snapshot_every", 0),
        ("server", 8642),
        ("server", ""),
        ("server", False),
        ("server", "none"),
        ("server", "ftp://box"),
        ("server", "http://"),
        ("server", "http://box:port"),
        ("server", "http://box:99999"),
        ("server", "http://me:secret@box"),
        ("server", "http://box/?token=secret"),
        ("keep", ""),
        ("keep", 3),
        ("name", ""),
        ("name", " "),
        ("name", "x" * 201),
        ("name", 3),
    ],
)
def test_invalid_values_are_named_with_the_allowed_ones(argument: str, given: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        Settings.of(**{argument: given})
    allowed = next(setting.allowed for setting in SETTINGS if setting.name == argument)
    assert str(caught.value).startswith(f"{argument}=")
    assert f"{argument} must be {allowed}." in str(caught.value)
    assert isinstance(caught.value, HookcoreError | ValueError)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"kind": {"output"}}, "'kinds'"),
        ({"Every": 2}, "'every'"),
        ({"excludes": []}, "'exclude'"),
        ({"kinds": {"outptu_grad"}}, "'output_grad'"),
        ({"attach": "Modul"}, "'module'"),
        ({"phases": "evla"}, "'eval'"),
        ({"server": "thraed"}, "'thread'"),
    ],
)
def test_a_misspelled_word_gets_the_nearest_as_a_hint(arguments: dict[str, object], hint: str) -> None:
    with pytest.raises(ArgumentError, match=f"Did you mean {hint}\\?"):
        Settings.of(**arguments)


@pytest.mark.parametrize(
    ("variable", "text", "kept"),
    [
        ("INCLUDE", "blocks.*, type:Linear", ("blocks.*", "type:Linear")),
        ("EXCLUDE", "none", ()),
        ("KINDS", "output,param", frozenset({"output", "param"})),
        ("EVERY", " 7 ", 7),
        ("BUDGET", "0.5", 0.5),
        ("BUDGET", "None", None),
        ("MEMORY", "64MB", 64_000_000),
        ("ATTACH", "module", "module"),
        ("COMPILED", "inside", "inside"),
        ("PHASES", "train,eval", frozenset({"train", "eval"})),
        ("CALLS", "2", 2),
        ("SKETCH_VALUES", "none", None),
        ("SKETCH_VALUES", "2048", 2048),
        ("SERVER", "none", None),
        ("SERVER", "thread", "thread"),
        ("SERVER", "http://box:1/", "http://box:1"),
        ("KEEP", "/runs", "/runs"),
        ("KEEP", "none", None),
        ("NAME", "none", "none"),
    ],
)
def test_an_environment_variable_replaces_a_missing_argument(variable: str, text: str, kept: object) -> None:
    environment = {f"HOOKCORE_{variable}": text}
    name = variable.lower()
    assert getattr(Settings.of(environment), name) == kept
    assert dataclasses.replace(Settings.of(environment), **{name: None}) == dataclasses.replace(
        Settings.of({}), **{name: None}
    )


def test_every_setting_has_a_variable() -> None:
    assert {setting.variable for setting in SETTINGS} == {f"HOOKCORE_{setting.name.upper()}" for setting in SETTINGS}
    assert Settings.of({setting.variable: " " for setting in SETTINGS}) == Settings.of({})


def test_an_argument_overrides_its_variable_which_overrides_the_url() -> None:
    environment = {"HOOKCORE_URL": "http://a"}
    assert Settings.of(environment).server == "http://a"
    environment["HOOKCORE_SERVER"] = "http://b"
    assert Settings.of(environment).server == "http://b"
    assert Settings.of(environment, server=None).server is None


@pytest.mark.parametrize(
    ("variable", "text"), [("HOOKCORE_EVERY", "often"), ("HOOKCORE_URL", "box:8642"), ("HOOKCORE_BUDGET", "5%")]
)
def test_an_invalid_variable_is_named_with_the_allowed_values(variable: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{variable}='{text}' is invalid: ") as caught:
        Settings.of({variable: text})
    assert "literal" not in str(caught.value)
    assert "convert" not in str(caught.value)


def test_an_error_says_where_a_password_in_an_address_belongs() -> None:
    with pytest.raises(ArgumentError, match="HOOKCORE_TOKEN"):
        Settings.of(server="http://me:secret@box")


def test_a_folder_is_stored_as_an_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.of(keep="runs").keep == str(tmp_path / "runs")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.of(keep="~/runs").keep == str(tmp_path / "runs")


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("/a/b/fit.py", "fit"),
        ("/a/project/__main__.py", "project"),
        ("", "python"),
        ("-c", "python"),
    ],
)
def test_a_run_is_named_after_its_script(monkeypatch: pytest.MonkeyPatch, script: str, name: str) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    assert Settings.of().name == name


def test_settings_can_be_written_as_json_and_read_again() -> None:
    settings = Settings.of({}, include=["a.*", Linear], kinds="output", keep="/runs", budget=None)
    written = json.loads(json.dumps(settings.as_dict()))
    assert written["include"] == ["a.*", "type:Linear"]
    assert Settings.of({}, **written) == dataclasses.replace(settings, include=("a.*", "type:Linear"))


def test_the_error_for_an_unknown_argument_lists_every_setting() -> None:
    with pytest.raises(ArgumentError, match="'color' is not a setting") as caught:
        Settings.of(color="red")
    assert all(setting.name in str(caught.value) for setting in SETTINGS)
    assert "Did you mean" not in str(caught.value)


def test_the_error_for_a_module_as_a_pattern_asks_for_its_path_or_class() -> None:
    with pytest.raises(ArgumentError, match="give its path or its class"):
        Settings.of(include=[Linear()])


def test_a_huge_argument_does_not_flood_the_message() -> None:
    with pytest.raises(ArgumentError) as caught:
        Settings.of(every=list(range(100_000)))
    assert len(str(caught.value)) < 200


def test_nearest_names_come_in_order_and_keep_their_case() -> None:
    assert nearest("linaer", ["LayerNorm", "Linear", "Bilinear"]) == ["Linear", "Bilinear"]
    assert nearest("qqq", ["Linear"]) == []
