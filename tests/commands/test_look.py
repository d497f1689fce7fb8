"""`hookcore look`: the weights in a file as a run of one step, and what differs between two files."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn

from hookcore.delivery.archive import read_archive
from hookcore.records import STAT_COLUMN, Frame
from hookcore_app.cli import main

TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool),
)


@pytest.fixture
def look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def look(*paths: Path) -> str:
        assert main(["look", *map(str, paths), "--server", "none", "--keep", str(tmp_path / "runs")]) == 0
        return capsys.readouterr().out

    return look


def weights(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    return {f"net.{name}": value.detach().clone() for name, value in model.state_dict().items()}


def columns_of(runs: Path, kind: str, name: str = "") -> dict[str, dict[str, float]]:
    """Return the columns of the tensors of a kind in a saved run, by their tensors."""
    (folder,) = [each for each in runs.glob("*.hookcore") if name in each.name]
    archive = read_archive(folder)
    taps, found = archive.taps(), dict[str, dict[str, float]]()
    frames: list[Frame] = list(archive.frames())
    for frame in frames:
        assert frame.step == 0
        for number, stats in zip(frame.taps.tolist(), frame.stats, strict=True):
            tap = taps[number]
            if tap.kind == kind:
                columns = {stat: float(stats[column]) for stat, column in STAT_COLUMN.items()}
                found[f"{tap.module}.{tap.index}".lstrip(".")] = columns
    return found


def test_every_type_of_safetensors_has_the_statistics_that_torch_computes(
    tmp_path: Path, look: Callable[..., str]
) -> None:
    torch.manual_seed(0)
    given = {str(each).removeprefix("torch."): (torch.randn(37, 5).abs() * 3).to(each) for each in TYPES}
    given["float16"][0, 0], given["bfloat16"][1, 1], given["float8_e5m2"][2, 2] = (
        float("nan"),
        -float("inf"),
        float("inf"),
    )
    save_file(given, tmp_path / "all.safetensors")
    look(tmp_path / "all.safetensors")
    found = columns_of(tmp_path / "runs", "param")
    assert set(found) == set(given)
    for name, tensor in given.items():
        values = tensor.double()
        finite, columns = values[values.isfinite()], found[name]
        expected = {"mean": finite.mean(), "norm": finite.norm(), "min": finite.min(), "max": finite.max()}
        assert {stat: columns[stat] for stat in expected} == pytest.approx(
            {stat: float(value) for stat, value in expected.items()}, rel=1e-12
        )
        counts = values.numel(), values.isnan().sum(), values.isinf().sum(), (values == 0).sum()
        assert [columns[stat] for stat in ("count", "nan", "inf", "zero")] == list(map(int, counts))


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (6, 3, 2, 2)])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_the_rank_of_a_matrix_is_that_of_torch(
    shape: tuple[int, ...], rank: int, tmp_path: Path, look: Callable[..., str]
) -> None:
    torch.manual_seed(rank)
    rows, columns = shape[0], int(torch.Size(shape[1:]).numel())
    matrix = torch.randn(rows, rank) @ torch.randn(rank, columns)
    save_file({"a.weight": matrix.reshape(shape).contiguous()}, tmp_path / "m.safetensors")
    told = look(tmp_path / "m.safetensors")
    singular = torch.linalg.svdvals(matrix.double())
    found = columns_of(tmp_path / "runs", "probe")
    assert found["a.rank of weight"]["mean"] == int(torch.linalg.matrix_rank(matrix)) == rank
    stable = float((singular**2).sum() / singular[0] ** 2) if rank else 0.0
    assert found["a.stable rank of weight"]["mean"] == pytest.approx(stable, rel=1e-6)
    assert f"rank {rank} of {min(rows, columns)}: a.weight" in told


def test_safetensors_are_read_without_torch(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "m.safetensors")
    code = """
import sys
from hookcore_app.cli import main
code = main(["look", sys.argv[1], "--server", "none", "--keep", sys.argv[2]])
sys.exit(code or ("torch" in sys.modules and "torch was imported"))
"""
    paths = [str(tmp_path / "m.safetensors"), str(tmp_path / "runs")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, capture_output=True)


def test_two_files_are_compared_value_by_value_and_what_could_not_be_compared_is_named(
    tmp_path: Path, look: Callable[..., str]
) -> None:
    one, other = weights(), weights()
    one["only.here"], one["reshaped"], other["reshaped"] = torch.ones(2), torch.ones(4), torch.ones(2, 2)
    other["net.0.weight"][0, 0] += 0.5
    other["net.2.bias"][1] = float("nan")
    other["net.1.weight"] = other["net.1.weight"].bfloat16()  # ones, in both types
    save_file(one, tmp_path / "one.safetensors")
    save_file(other, tmp_path / "other.safetensors")
    told = look(tmp_path / "one.safetensors", tmp_path / "other.safetensors")
    share = 0.5 / float(one["net.0.weight"].norm())
    assert "compared 6 tensors of both files, value by value: 4 equal, 2 different" in told
    assert f"net.0.weight: {share:.3g} of its norm, at most 0.5, 1 of 48 values" in told
    assert "net.2.bias: 0 of its norm, at most 0, 1 of 3 values; 1 of these non-finite" in told
    assert "equal values of another type: net.1.weight" in told
    assert "not compared: reshaped has the shape [4] in one file and [2, 2] in the other" in told
    assert f"only in {tmp_path / 'one.safetensors'}: only.here" in told
    updates = columns_of(tmp_path / "runs", "update", "other")
    assert updates["net.0.weight"]["norm"] == pytest.approx(0.5, rel=1e-6)
    assert updates["net.0.weight"]["ratio"] == pytest.approx(share, rel=1e-6)
    assert updates["net.1.bias"]["norm"] == 0
    assert [updates["net.2.bias"][stat] for stat in ("count", "nan")] == [2, 0]  # a NaN is a problem of the weights


def test_the_weights_are_a_run_that_questions_answer(
    tmp_path: Path, look: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = weights()
    given["net.2.bias"][1] = float("nan")
    save_file(given, tmp_path / "bad.safetensors")
    assert "non-finite: net.2.bias has 1 NaN and 0 infinite" in look(tmp_path / "bad.safetensors")
    assert main(["why", str(tmp_path / "runs")]) == 0
    assert "NaN first appeared in the weight of net.2, at step 0." in capsys.readouterr().out
    assert main(["layers", str(tmp_path / "runs"), "--kind", "param", "--match", "type:float32"]) == 0
    assert "net.0 param [weight]" in capsys.readouterr().out


def test_shards_are_one_model_and_what_a_missing_one_had_is_named(tmp_path: Path, look: Callable[..., str]) -> None:
    given = weights()
    places = {name: f"model-0000{1 + name.startswith('net.2')}-of-00002.safetensors" for name in given}
    for file in set(places.values()):
        save_file({name: given[name] for name in given if places[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert "6 tensors" in look(tmp_path)
    (tmp_path / places["net.2.bias"]).unlink()
    told = look(tmp_path / "model.safetensors.index.json")
    assert "4 tensors" in told
    assert f"not read: net.2.bias: {places['net.2.bias']} is missing" in told


def test_a_file_that_is_cut_off_says_which_tensors_are_missing(tmp_path: Path, look: Callable[..., str]) -> None:
    save_file(weights(), tmp_path / "m.safetensors")
    content = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(content[:-50])
    told = look(tmp_path / "m.safetensors")
    assert "bytes are not in the file, which is cut off or damaged" in told
    assert "5 tensors" in told


@pytest.mark.parametrize(
    "content", [b"\xff" * 40, b"\x02" + bytes(7) + b"[]", b"\x10" + bytes(7) + b'{"a": {"dtype"  ']
)
def test_a_damaged_header_is_an_error_that_names_the_file(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    assert main(["look", str(tmp_path / "m.safetensors"), "--server", "none", "--keep", str(tmp_path)]) == 2
    assert "m.safetensors' can't be read as safetensors" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_torch_and_a_distributed_one_have_the_same_weights(
    tmp_path: Path, look: Callable[..., str]
) -> None:
    given = {**weights(), "half": torch.randn(3, 4).bfloat16()}
    torch.save({"model": given, "step": 3, "lr": 0.1}, tmp_path / "one.pt")
    dcp.save({"model": given, "step": 3}, checkpoint_id=tmp_path / "folder", no_dist=True)
    told = look(tmp_path / "one.pt", tmp_path / "folder")
    assert "compared 7 tensors of both files, value by value: 7 equal, 0 different" in told
    assert "(distributed checkpoint): 7 tensors (6 float32, 1 bfloat16)" in told


def test_no_code_of_a_file_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (ran,)

    torch.save({"weight": torch.ones(2), "evil": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".metadata").write_bytes(pickle.dumps(Evil()))
    for path, sentence in (("evil.pt", "weights_only"), ("folder", "which no description needs")):
        assert main(["look", str(tmp_path / path), "--server", "none", "--keep", str(tmp_path)]) == 2
        assert sentence in capsys.readouterr().err
    assert not ran.exists()


def test_without_a_server_and_a_folder_nothing_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(weights(), tmp_path / "m.safetensors")
    assert main(["look", str(tmp_path / "m.safetensors"), "--server", "none"]) == 2
    assert "give a folder with --keep" in capsys.readouterr().err
