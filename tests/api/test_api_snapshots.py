"""Raw tensors over REST: all formats hold the same values, slices follow NumPy, and requests reach the trainer."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from hookcore.errors import ArgumentError
from hookcore.reading.pictures import cut
from hookcore.records import Snapshot, Tap
from hookcore.records.vocabulary import NAN_COLOR, rgb_of
from hookcore.records.wire import DTYPES
from hookcore_app.analysis.tiles import colors_of, png_of
from tests.api_world import MATRIX, TAPS, World, csv_columns, floats, npy, same


@pytest.fixture
def world() -> World:
    return World()


def _add(world: World, values: Any, number: int = 77, **others: Any) -> str:
    """Add a snapshot of these values, and return its address."""
    kept = np.asarray(values)
    shape = others.pop("shape", kept.shape)
    world.run.store.add_snapshot(Snapshot(TAPS[1], 5, 1.0, str(kept.dtype), shape, kept, number=number, **others))
    return f"snapshots/{number}"


def test_every_format_holds_the_same_values(world: World) -> None:
    said = world.json("snapshots/0")
    assert same(said["values"], MATRIX)
    assert said["values"][0][2] == "NaN"
    assert said["values"][1] == ["Infinity", 0.0, "-Infinity"]
    assert (said["shape"], said["step"], said["tap"]["module"]) == ([2, 3], 3, "layers.0")
    assert same(npy(world.get("snapshots/0", "application/x-npy").content), MATRIX)
    tensors = safetensors.numpy.load(world.get("snapshots/0", format="safetensors").content)
    assert same(tensors["values"], MATRIX)
    lines = csv_columns(world.get("snapshots/0", "text/csv").content)
    assert same(floats(list(lines.values())).T, MATRIX)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_tensor_of_every_type_is_returned_unchanged(world: World, dtype: str) -> None:
    values = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    path = _add(world, values)
    held = npy(world.get(path, format="npy").content)
    assert held.dtype == values.dtype
    assert np.array_equal(held, values)
    said = world.json(path)["values"]
    pairs = values.dtype.kind == "c"
    assert np.array_equal(np.array(said) if not pairs else np.array(said) @ [1, 1j], values)
    if dtype != "complex128":
        tensors = safetensors.numpy.load(world.get(path, format="safetensors").content)
        assert np.array_equal(tensors["values"], values)
        assert tensors["values"].dtype == values.dtype
    if not pairs:
        assert len(csv_columns(world.get(path, format="csv").content)) == 3
    assert world.get(path, format="png").content.startswith(b"\x89PNG")


def test_a_tensor_without_dimensions_is_one_number(world: World) -> None:
    path = _add(world, np.float32(np.inf))
    assert world.json(path)["values"] == "Infinity"
    assert npy(world.get(path, format="npy").content).shape == ()
    assert safetensors.numpy.load(world.get(path, format="safetensors").content)["values"].shape == ()


def test_an_empty_tensor_is_an_empty_list(world: World) -> None:
    path = _add(world, np.empty((2, 0)))
    assert world.json(path)["values"] == [[], []]
    assert "pixel" in world.error(path, 406, format="png")


@pytest.mark.parametrize("shape", [(0, 2**52), (2**52, 0), (0, 2**40, 2**12), (2**22, 0, 1)])
def test_an_empty_tensor_with_a_huge_shape_is_not_written_as_text(world: World, shape: tuple[int, ...]) -> None:
    path = _add(world, np.empty(shape, np.float32))
    for name in ("json", "csv", "png"):
        assert "more than 2000000" in world.error(path, 400, format=name)
    assert npy(world.get(path, format="npy").content).shape == shape
    assert world.json(f"{path}/statistics")["statistics"]["count"] == 0
    assert world.json(f"{path}/casts")["formats"] == {}
    assert world.get(f"{path}/tiles").status_code == 200
    assert "can't be a picture" in world.error("figure", 400, chart="tensor", number=77)
    assert world.client.get("/runs/one/model/tensors?snapshot=77").status_code == 200


@pytest.mark.parametrize("shape", [(1, 30_000), (30_000, 1), (3, 2), (7,), (), (0, 3), (2, 0)])
def test_a_csv_has_a_line_per_row_for_any_number_of_columns(world: World, shape: tuple[int, ...]) -> None:
    values = np.linspace(-1e30, 1e-30, int(np.prod(shape))).reshape(shape).astype(np.float32)
    if values.size > 1:
        values.flat[0], values.flat[1] = np.nan, -np.inf
    names, *rows = world.get(_add(world, values), format="csv").text.splitlines()
    matrix = values.reshape(-1, 1) if values.ndim < 2 else values
    assert names == ",".join(f'"{place}"' for place in range(matrix.shape[1]))
    assert len(rows) == len(matrix)
    found = np.array([cell for row in rows for cell in row.split(",") if cell], np.float32)
    assert same(found, matrix.ravel())


def test_a_truncated_snapshot_says_so(world: World) -> None:
    path = _add(world, np.arange(4.0), shape=(100, 100), truncated=True)
    said = world.json(path, slice="1:")
    assert (said["shape"], said["kept_shape"], said["truncated"]) == ([100, 100], [4], True)
    assert said["values"] == [1.0, 2.0, 3.0]


def test_a_format_that_cannot_hold_a_tensor_names_those_that_can(world: World) -> None:
    cube = _add(world, np.zeros((2, 2, 2)), 1000)
    assert "slice" in world.error(cube, 406, format="csv")
    assert "slice" in world.error(cube, 406, format="png")
    assert world.get(cube, format="csv", slice="0").status_code == 200
    large = _add(world, np.zeros(2_000_001, np.uint8), 1001)
    assert "npy" in world.error(large, 400)
    assert len(npy(world.get(large, format="npy").content)) == 2_000_001
    complex_one = _add(world, np.zeros((2, 2), complex), 1002)
    assert "npy" in world.error(complex_one, 406, format="safetensors")
    assert "real" in world.error(complex_one, 406, format="csv")


def test_a_missing_snapshot_is_either_awaited_or_unknown(world: World) -> None:
    assert "see the list" in world.error("snapshots/9", 404)
    asked = world.client.post("/api/v1/snapshots", json={"tap": 1}).json()
    assert "try again" in world.error(f"snapshots/{asked['number']}", 404)


# -- slices ------------------------------------------------------------------------------------------------------------

INDEX = st.integers(-7, 7)
BOUND = st.none() | INDEX
SLICE = st.builds(slice, BOUND, BOUND, st.none() | INDEX)
PARTS = st.lists(INDEX | SLICE | st.just(...), max_size=5)


def _text(part: Any) -> str:
    if part is ...:
        return "..."
    if isinstance(part, int):
        return str(part)
    bounds = ["" if bound is None else str(bound) for bound in (part.start, part.stop, part.step)]
    return ":".join(bounds if bounds[2] else bounds[:2])


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple), PARTS)
@example((3, 3), [0, ..., slice(None, None, 0)])
@example((), [...])
def test_a_slice_equals_numpys(shape: tuple[int, ...], parts: list[Any]) -> None:
    values = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    text = ",".join(map(_text, parts))
    try:
        expected = values[tuple(parts)]
    except (IndexError, ValueError):
        with pytest.raises(ArgumentError):
            cut(values, text)
        return
    found = cut(values, text)
    assert found.shape == np.shape(expected)
    assert np.array_equal(found, expected)


@given(st.text(alphabet="0123456789:,.- x", max_size=30))
def test_a_malformed_slice_is_refused_not_crashed_on(text: str) -> None:
    with suppress(ArgumentError):
        assert cut(MATRIX, text).size <= MATRIX.size


@pytest.mark.parametrize("part", ["x", "0,,1", "1:2:3:4", "0,0,0", "9", "::0", "...,...", "9" * 40])
def test_an_impossible_slice_is_refused_with_a_sentence(world: World, part: str) -> None:
    assert "slice" in world.error("snapshots/0", 400, slice=part)


def test_a_slice_is_the_same_in_every_format(world: World) -> None:
    part = MATRIX[1, ::-1]
    assert same(world.json("snapshots/0", slice="1,::-1")["values"], part)
    assert same(npy(world.get("snapshots/0", format="npy", slice="1,::-1").content), part)
    tensors = safetensors.numpy.load(world.get("snapshots/0", format="safetensors", slice="1,::-1").content)
    assert same(tensors["values"], part)
    assert same(csv_columns(world.get("snapshots/0", format="csv", slice="1,::-1").content)["0"], part)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _pixels(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


@given(arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_png_decodes_to_the_colors_of_its_values(values: Any) -> None:
    assert np.array_equal(_pixels(png_of(values)), colors_of(values))


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5))))
def test_exactly_the_nan_values_are_magenta(values: Any) -> None:
    magenta = (colors_of(values) == rgb_of(NAN_COLOR)).all(axis=-1)
    assert np.array_equal(magenta, np.isnan(values))


def test_nonnegative_values_are_gray_and_others_diverge_from_white(world: World) -> None:
    assert _pixels(png_of(np.array([[0.0, 1.0, np.inf]]))).tolist() == [[[0] * 3, [255] * 3, [255] * 3]]
    signed = _pixels(png_of(np.array([[-2.0, 0.0, 2.0, -np.inf]])))
    assert signed.tolist() == [[[0, 0, 255], [255, 255, 255], [255, 0, 0], [0, 0, 255]]]
    assert _pixels(world.get("snapshots/0", "image/png").content).shape == (2, 3, 3)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "tap"),
    [
        ({"tap": 2}, TAPS[2]),
        ({"tap": TAPS[3].label}, TAPS[3]),
        ({"module": "head"}, Tap("head", "output")),
        (
            {"module": "layers.1", "kind": "input", "index": "past.0", "call": 3, "phase": "eval"},
            Tap("layers.1", "input", "past.0", 3, "eval"),
        ),
    ],
)
def test_a_request_reaches_the_trainer_and_returns_the_address_of_the_snapshot(
    world: World, wanted: Any, tap: Tap
) -> None:
    answer = world.client.post("/api/v1/snapshots", json=wanted)
    assert answer.status_code == 202
    [command] = world.run.commands
    assert (command.name, command.tap, command.number) == ("snapshot", tap, answer.json()["number"])
    _add(world, MATRIX, command.number)
    assert same(world.client.get(answer.json()["look"]).json()["values"], MATRIX)


@pytest.mark.parametrize(
    "wanted",
    [{}, {"tap": 0, "module": "head"}, {"tap": 99}, {"module": "heat"}, {"tap": True}, {"module": "head", "kind": "x"}],
)
def test_a_request_for_an_unknown_tensor_is_refused(world: World, wanted: Any) -> None:
    answer = world.client.post("/api/v1/snapshots", json=wanted)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]
    assert not world.run.commands
