"""Atomic files: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from hookcore.delivery.archive.layout import part_name, parts_in
from hookcore.delivery.dashboard.whole import UNFINISHED, whole_file

MERGE_AT: Final = 8  # this many parts of about one size become one
MERGED_BYTES: Final = 64 * 2**20  # larger ones are left as they are


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> int:
    """Write a file atomically; a crash leaves the old one, or none. Return by how many bytes the folder grew."""
    before = path.stat().st_size if path.exists() else 0
    with whole_file(path) as file:
        write(file)
        grown = file.tell() - before
    _sync_folder(path.parent)
    return grown


def _sync_folder(folder: Path) -> None:
    """Sync a folder, because a power failure could otherwise undo a renaming."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json(path: Path, content: dict[str, Any]) -> int:
    """Write a JSON file atomically. Return by how many bytes the folder grew."""
    data = json.dumps(content, indent=1).encode()
    return write_whole(path, lambda file: file.write(data))


def write_table(path: Path, table: pa.Table) -> int:
    """Write a Parquet file atomically. Return by how many bytes the folder grew."""
    # A dictionary of numbers that hardly repeat saves nothing, and takes time to make.
    words = [field.name for field in table.schema if pa.types.is_dictionary(field.type) or field.type == pa.string()]
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": words, "write_statistics": True}
    return write_whole(path, lambda file: pq.write_table(table, file, **options))


def _read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    with path.open("rb") as file:  # Arrow opens only paths that are valid UTF-8
        return pq.read_table(file, columns=columns)


def last_frame(folder: Path) -> int:
    """Return the highest frame number in the readable parts of a table, or -1."""
    for _, _, path in reversed(parts_in(folder)):
        with contextlib.suppress(OSError, pa.ArrowException, IndexError):
            return int(_read_table(path, ["frame"])["frame"][-1].as_py())
    return -1


def remove_unfinished(folder: Path) -> None:
    """Remove what a crash left: unfinished files, and parts that were merged into others."""
    for path in folder.rglob(f"*{UNFINISHED}"):
        path.unlink()
    for below in folder.iterdir():
        if below.is_dir():
            counting = {path for _, _, path in parts_in(below)}
            for path in below.glob("part-*.parquet"):
                if path not in counting:
                    path.unlink()


def merge_parts(folder: Path) -> int:
    """Merge small parts, if there are many. Return by how many bytes the folder grew.

    The merged part is complete before the others are removed, so that no data is ever missing. A crash in between
    leaves duplicate rows for programs that read all files; hookcore checks the ranges, and the next writer cleans up.
    """
    run = _mergeable(parts_in(folder))
    if not run:
        return 0
    table = joined([_read_table(path) for _, _, path in run])
    before = sum(path.stat().st_size for _, _, path in run)
    after = write_table(folder / part_name(run[0][0], run[-1][1]), table)
    for _, _, path in run:
        path.unlink()
    return after - before


def joined(parts: list[pa.Table]) -> pa.Table:
    """Return the rows of all parts. In those of an older release, a later column is null."""
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries()


def _mergeable(parts: list[tuple[int, int, Path]]) -> list[tuple[int, int, Path]]:
    """Return the newest neighbors of one size class, if there are enough."""
    by_class: list[tuple[int, list[tuple[int, int, Path]]]] = []
    for part in parts:
        size = part[2].stat().st_size
        level = _level_of(part[1] - part[0] + 1) if size < MERGED_BYTES // 2 else -1
        if not by_class or by_class[-1][0] != level:
            by_class.append((level, []))
        by_class[-1][1].append(part)
    for level, run in reversed(by_class):
        if level >= 0 and len(run) >= MERGE_AT:
            return run[:MERGE_AT]
    return []


def _level_of(parts: int) -> int:
    level = 0
    while parts >= MERGE_AT:
        parts //= MERGE_AT
        level += 1
    return level
