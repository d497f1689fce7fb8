"""What a server makes of its files is kept on disk for the next one, and is never trusted if others can write it."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment

from hookcore_app import assets
from hookcore_app.assets import Prepared, prepared
from hookcore_app.pages.frame import FILTERS

SCRIPT = "joined/overview.js"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(prepared, "folder", None)
    assets.read.cache_clear()
    yield tmp_path / "prepared"
    assets.read.cache_clear()


def read_anew(name: str) -> assets.Asset:
    assets.read.cache_clear()
    found = assets.read(name)
    assert found is not None
    return found


def opened() -> Environment:
    templates = assets.open_templates()
    templates.filters |= {filter.__name__: filter for filter in FILTERS}
    return templates


def test_the_next_server_reads_the_same_script_from_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = read_anew(SCRIPT)
    prepared.use(folder)
    assert read_anew(SCRIPT) == made
    monkeypatch.setattr(assets, "_content_of", lambda name: pytest.fail(f"{name} was made again"))
    assert read_anew(SCRIPT) == made
    assert gzip.decompress(made.squeezed) == made.content


def test_an_unknown_name_is_not_found_with_such_a_folder_either(folder: Path) -> None:
    prepared.use(folder)
    assert assets.read("joined/../../settings.py") is None
    assert assets.read("joined/nothing.js") is None


DAMAGED = {"empty": b"", "no gzip": b"no gzip", "half": gzip.compress(b"half", mtime=0)[:-4]}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_made_again(folder: Path, damaged: bytes) -> None:
    made = read_anew(SCRIPT)
    prepared.use(folder)
    read_anew(SCRIPT)
    for path in (folder / assets.version()).iterdir():
        path.write_bytes(damaged)
    assert read_anew(SCRIPT) == made
    assert read_anew(SCRIPT) == made


def test_templates_are_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared.use(folder)
    source = opened().get_template("nothing.html")
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "_compile", lambda *_: pytest.fail("it was compiled again"))
        again = opened().get_template("nothing.html")
    assert again.root_render_func.__code__ == source.root_render_func.__code__
    for path in (folder / assets.version()).iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert opened().get_template("nothing.html").root_render_func.__code__ == source.root_render_func.__code__


@pytest.mark.parametrize("part", ["", "version"])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, part: str) -> None:
    chosen = folder / assets.version() if part else folder
    chosen.mkdir(parents=True)
    chosen.chmod(0o777)
    prepared.use(folder)
    assert prepared.folder is None
    assert read_anew(SCRIPT).content


def test_a_folder_that_cannot_be_made_only_costs_time(folder: Path) -> None:
    folder.write_text("a file")
    prepared.use(folder)
    assert prepared.folder is None


def test_only_the_newest_versions_are_kept(folder: Path) -> None:
    for number in range(6):
        (folder / f"version-{number}").mkdir(parents=True)
        os.utime(folder / f"version-{number}", (number, number))
    Prepared().use(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["version-4", "version-5", assets.version()])


def test_what_cannot_be_written_is_made_again(folder: Path) -> None:
    prepared.use(folder)
    for path in (*folder.iterdir(), folder):
        for inner in path.iterdir():
            inner.rmdir() if inner.is_dir() else inner.unlink()
        path.rmdir()
    assert read_anew(SCRIPT).content
    assert opened().get_template("nothing.html").filename
