"""`hookcore import`: logs of TensorBoard, W&B, and Trackio, as runs.

Their files are read here, record by record, so that none of these tools has to be installed: event files and W&B's logs
are records with a checksum, each of which is a protocol buffer; Trackio has a database of SQLite.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.commands.intake import ImportedRun, row_of_buckets
from hookcore.config import Settings
from hookcore.errors import ArgumentError
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import IMAGE_TYPE, MAX_MEDIA_BYTES, TABLE_TYPE, TEXT_TYPE, counted

MAX_RECORD: Final = 64 * 2**20  # bytes; larger ones are counted
MAX_ROWS: Final = 1000  # of a table
SHOWN: Final = 12
_FOUND: Final = ("scalar value", "histogram", "image", "text", "table")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# Protocol buffers: the fields of a message, by their numbers.


def fields_of(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: integers, and bytes for all others. Raises ValueError if it is damaged."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > end:
            raise ValueError("a field that ends after its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that doesn't end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _last(data: bytes) -> dict[int, Any]:
    """Return the last value of each field."""
    return dict(fields_of(data))


def _all(data: bytes, number: int) -> list[Any]:
    return [value for field, value in fields_of(data) if field == number]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _number(data: Any) -> float:
    """Return a float or a double; NaN if it is neither."""
    size = len(data) if isinstance(data, bytes) else 0
    return float(struct.unpack("<f" if size == 4 else "<d", data)[0]) if size in (4, 8) else math.nan


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


# What all logs have in common: values with a meaning that their type says.


@dataclass(slots=True)
class Log:
    """Puts the values of a log into its run."""

    run: ImportedRun
    media: Path | None = None  # the folder of pictures and tables

    def add(self, step: int, time_s: float, name: str, value: Any) -> None:
        """Add a value of W&B or Trackio: a number, a text, or an object that says its type."""
        if isinstance(value, str) and value not in _WORDS:
            self.run.add_media(step, time_s, name, TEXT_TYPE, value.encode("utf-8", "replace"), "text")
        elif isinstance(value, bool | int | float | str):
            self.run.add_scalar(step, time_s, name, _WORDS[value] if isinstance(value, str) else float(value))
        elif isinstance(value, Mapping) and "_type" in value:
            self._add_typed(step, time_s, name, value)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                self.add(step, time_s, f"{name}.{key}", each)
        elif value is not None:
            self.run.missing[f"values of type {type(value).__name__}, such as {name[:80]!r}"] += 1

    def _add_typed(self, step: int, time_s: float, name: str, value: Mapping[str, Any]) -> None:
        kind = str(value["_type"]).removeprefix("trackio.")
        if kind == "histogram":
            edges, counts = (np.array(value.get(each, ()), np.float64) for each in ("bins", "values"))
            self.add_histogram(step, time_s, name, edges, counts)
        elif kind in ("image-file", "image"):
            self.add_image(step, time_s, name, self._file(value.get("path") or value.get("file_path")))
        elif kind in ("images/separated", "images"):
            for place, path in enumerate(value.get("filenames", ())):
                self.add_image(step, time_s, f"{name}/{place}", self._file(path))
        elif kind in ("table", "table-file"):
            self._add_table(step, time_s, name, value)
        else:
            self.run.missing[f"values of type {kind[:80]}, such as {name[:80]!r}"] += 1

    def _add_table(self, step: int, time_s: float, name: str, value: Mapping[str, Any]) -> None:
        given: Any = value.get("_value")
        if given is None:
            with suppress(ValueError):
                given = json.loads(self._file(value.get("path")) or b"null")
        if isinstance(given, list) and all(isinstance(row, Mapping) for row in given):
            columns = list(dict.fromkeys(str(key) for row in given for key in row))
            rows: Any = [[row.get(key) for key in columns] for row in given]
        elif isinstance(given, Mapping) and isinstance(given.get("data"), list):
            columns, rows = list(map(str, given.get("columns", ()))), given["data"]
        else:
            self.run.missing[f"tables that can't be read, such as {name[:80]!r}"] += 1
            return
        cells = [
            [each if isinstance(each, bool | int | float) else str(each) for each in row] for row in rows[:MAX_ROWS]
        ]
        data = json.dumps({"columns": columns, "rows": cells, "total": len(rows)}).encode()
        self.run.add_media(step, time_s, name, TABLE_TYPE, data, "table")

    def _file(self, path: object) -> bytes | None:
        """Return the content of a file in the log's own folder; None if it is missing, elsewhere, or too large."""
        if self.media is None or not isinstance(path, str):
            return None
        place = (self.media / path).resolve()
        with suppress(OSError):
            if place.is_relative_to(self.media.resolve()) and place.stat().st_size <= MAX_MEDIA_BYTES:
                return place.read_bytes()
        return None

    def add_image(self, step: int, time_s: float, name: str, data: bytes | None) -> None:
        """Add a picture, if it is a PNG."""
        if data is None:
            self.run.missing[f"images whose file is missing or above {MAX_MEDIA_BYTES:,} bytes"] += 1
        elif not data.startswith(_PNG):
            self.run.missing["images that are no PNG"] += 1
        else:
            self.run.add_media(step, time_s, name, IMAGE_TYPE, data, "image")

    def add_histogram(
        self,
        step: int,
        time_s: float,
        name: str,
        edges: NDArray[np.float64],
        counts: NDArray[np.float64],
        sums: tuple[float, float] | None = None,
    ) -> None:
        """Add a histogram by its edges and counts."""
        row = row_of_buckets(edges, counts, sums)
        if row is None:
            self.run.missing["histograms that are empty or damaged"] += 1
        else:
            self.run.add_row(step, time_s, Tap(name, PROBE, "histogram"), row)


# TensorBoard: a folder with event files is a run.

_TENSORS: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # of TensorFlow's types
_LISTED: Final = {5: "<f4", 6: "<f8"}  # fields with values, instead of the content
_OTHERS: Final = {4: "graphs", 6: "log messages", 8: "metadata of runs", 9: "graphs"}


def _crc_tables() -> list[list[int]]:
    """Return the CRC-32C of a byte that has 0 to 3 others behind it: four are looked up at a time."""
    first = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        first.append(value)
    tables = [first]
    while len(tables) < 4:
        tables.append([first[value & 255] ^ value >> 8 for value in tables[-1]])
    return tables


_CRC: Final = _crc_tables()


def _masked_crc(data: bytes) -> int:
    """Return TensorBoard's checksum."""
    one, two, three, four = _CRC
    crc, whole = 0xFFFFFFFF, len(data) // 4
    for word in struct.unpack_from(f"<{whole}I", data):
        crc ^= word
        crc = four[crc & 255] ^ three[crc >> 8 & 255] ^ two[crc >> 16 & 255] ^ one[crc >> 24]
    for byte in data[4 * whole :]:
        crc = one[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class LogEvent(NamedTuple):
    """One event of a log: its step first, by which the events of several files are merged."""

    step: int
    time_s: float
    values: list[bytes]
    other: str = ""


def events_in(path: Path, damaged: Counter[str]) -> Iterator[LogEvent]:
    """Yield the events of a file. Damaged records are counted, with their places."""
    with path.open("rb") as file:
        for place, data in _records_of(file, path.name, damaged):
            try:
                yield _event_of(data)
            except (ValueError, struct.error) as error:
                damaged[f"a damaged record of {path.name} at byte {place:,}: {error}"] += 1


def _records_of(file: BinaryIO, name: str, damaged: Counter[str]) -> Iterator[tuple[int, bytes]]:
    while head := file.read(12):
        place = file.tell() - len(head)
        size, check = struct.unpack("<QI", head) if len(head) == 12 else (0, -1)
        if len(head) < 12 or _masked_crc(head[:8]) != check:
            what = "is cut off" if len(head) < 12 else "has a damaged length, so what follows can't be read,"
            damaged[f"{name} {what} at byte {place:,}"] += 1
            return
        if size > MAX_RECORD:
            damaged[f"a record of {name} with {size:,} bytes"] += 1
            file.seek(size + 4, os.SEEK_CUR)
            continue
        data, check_bytes = file.read(size), file.read(4)
        if len(check_bytes) < 4:
            damaged[f"{name} is cut off at byte {place:,}"] += 1
            return
        if _masked_crc(data) != struct.unpack("<I", check_bytes)[0]:
            damaged[f"a damaged record of {name} at byte {place:,}: its checksum is wrong"] += 1
            continue
        yield place, data


def _event_of(data: bytes) -> LogEvent:
    step, time_s, values, other = 0, 0.0, list[bytes](), ""
    for number, value in fields_of(data):
        if number == 1:
            time_s = _number(value)
        elif number == 2:
            step = _signed(value)
        elif number == 5:
            values = _all(value, 1)
        else:
            other = _OTHERS.get(number, "")
    return LogEvent(step, time_s, values, other)


@dataclass(slots=True)
class TensorBoard:
    """The events of one folder. What a tag means is said once, in the first of its values."""

    log: Log
    plugins: dict[str, str]
    hyperparameters: dict[str, Any]

    def add(self, event: LogEvent) -> None:
        """Add an event to the run."""
        if event.other:
            self.log.run.missing[event.other] += 1
        for data in event.values:
            try:
                self._add_value(event.step, event.time_s, _last(data))
            except (ValueError, struct.error, IndexError, AttributeError):
                self.log.run.missing["damaged values"] += 1

    def _add_value(self, step: int, time_s: float, value: dict[int, Any]) -> None:
        tag = _text(value.get(1))
        if 9 in value:
            plugin = _last(_last(value[9]).get(1, b""))
            self.plugins[tag] = _text(plugin.get(1))
            if self.plugins[tag] == "hparams":
                self._add_hyperparameters(plugin.get(2, b""))
                return
        if 2 in value:
            self.log.run.add_scalar(step, time_s, tag, _number(value[2]))
        elif 4 in value:
            self.log.add_image(step, time_s, tag, _last(value[4]).get(4))
        elif 5 in value:
            self._add_histogram(step, time_s, tag, _last(value[5]))
        elif 8 in value:
            self._add_tensor(step, time_s, tag, value[8])
        else:
            self.log.run.missing["audio and other values" if 6 in value else "empty values"] += 1

    def _add_hyperparameters(self, content: bytes) -> None:
        """Read the protocol buffers of the plugin: what a session started with is a map to typed values."""
        for entry in _all(_last(content).get(3, b""), 1):
            pair = _last(entry)
            (kind, value), *_ = _last(pair[2]).items()
            given = {2: _number, 3: _text, 4: bool}.get(kind, lambda _: None)(value)
            self.hyperparameters[_text(pair[1])] = given
        if self.hyperparameters:
            self.log.run.learn(config=self.hyperparameters)

    def _add_histogram(self, step: int, time_s: float, tag: str, histogram: dict[int, Any]) -> None:
        limits, counts = (np.frombuffer(histogram.get(each, b""), "<f8") for each in (6, 7))
        low, high, many, total, squares = (_number(histogram.get(each)) for each in (1, 2, 3, 4, 5))
        edges = np.clip(np.concatenate([[-np.inf], limits]), low, high)  # the outer buckets are wider than the values
        is_whole = many > 0 and round(many) == round(float(counts.sum()))
        self.log.add_histogram(step, time_s, tag, edges, counts, (total, squares) if is_whole else None)

    def _add_tensor(self, step: int, time_s: float, tag: str, data: bytes) -> None:
        plugin, (numbers, texts) = self.plugins.get(tag, ""), _tensor_of(data)
        if plugin == "scalars" and numbers.size == 1:
            self.log.run.add_scalar(step, time_s, tag, float(numbers[0]))
        elif plugin == "histograms" and numbers.size and numbers.size % 3 == 0:
            low, high, counts = numbers.reshape(-1, 3).T
            self.log.add_histogram(step, time_s, tag, np.append(low, high[-1]), counts)
        elif plugin == "images" and len(texts) > 2:
            for place, image in enumerate(texts[2:]):  # the first two are the width and the height
                self.log.add_image(step, time_s, f"{tag}/{place}" if place else tag, image)
        elif plugin == "text" and texts:
            self.log.run.add_media(step, time_s, tag, TEXT_TYPE, b"\n".join(texts), "text")
        else:
            self.log.run.missing[f"values of the plugin {plugin[:80] or '(unknown)'}"] += 1


def _tensor_of(data: bytes) -> tuple[NDArray[np.float64], list[bytes]]:
    """Return the numbers and the texts of a tensor."""
    found = _last(data)
    kind = _TENSORS.get(found.get(1, 0))
    if found.get(4) and kind:
        return np.frombuffer(found[4], kind).astype(np.float64), []
    numbers = [np.frombuffer(value, _LISTED[n]) for n, value in fields_of(data) if n in _LISTED]
    return np.concatenate([np.empty(0), *numbers]).astype(np.float64), _all(data, 8)


def import_tensorboard(folder: Path, settings: Settings) -> Iterator[ImportedRun]:
    """Import each folder with event files as a run."""
    files: dict[Path, list[Path]] = {}
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*tfevents*")):
        files.setdefault(path.parent, []).append(path)
    if not files:
        raise ArgumentError(f"{str(folder)!r} has no event files: their names contain `tfevents`")
    top = folder.parent if folder.is_file() else folder
    for place, paths in files.items():
        name = top.name if place == top else place.relative_to(top).as_posix()
        damaged = Counter[str]()
        events = heapq.merge(*(events_in(path, damaged) for path in paths), key=lambda event: event.step)
        first = next(events, None)
        facts = {"imported from": str(place), "format": "TensorBoard"}
        chosen = _named(settings, name, len(files) == 1, group=top.name if len(files) > 1 else "")
        with ImportedRun(chosen, first.time_s if first else 0.0, facts) as run:
            board = TensorBoard(Log(run), {}, {})
            for event in chain([first] if first else [], events):
                board.add(event)
            run.missing.update(damaged)
        yield run


def _named(settings: Settings, name: str, is_only: bool, **others: Any) -> Settings:
    """Return the settings of a run. What was given on the command line is stronger, if it can only mean this run."""
    kept = {key: getattr(settings, key) or value for key, value in others.items() if value}
    return replace(settings, name=settings.name if settings.name and is_only else name, **kept)


# W&B: the log of a run on this disk, with its media next to it.

_IDENT: Final = b":W&B\xe1\xbe\x00"
_BLOCK: Final = 32768
_FULL, _FIRST, _MIDDLE, _END = 1, 2, 3, 4
_UNUSED: Final = {4: "console output", 7: "system metrics", 8: "artifacts", 10: "alerts", 13: "console output"}


def wandb_records(file: BinaryIO, name: str, damaged: Counter[str]) -> Iterator[bytes]:
    """Yield the records of a log: parts in blocks, each with a checksum. A damaged one costs the rest of its block."""
    if file.read(len(_IDENT)) != _IDENT:
        raise ArgumentError(f"{name!r} is no log of W&B: it begins with other bytes")
    parts: list[bytes] | None = None
    while True:
        at = file.tell()
        left = _BLOCK - at % _BLOCK
        head = file.read(min(7, left)) if left >= 7 else file.read(left)
        if not head:
            break
        if left < 7:
            continue  # the padding of a block
        check, size, kind = struct.unpack("<IHB", head) if len(head) == 7 else (0, 0, 0)
        data = file.read(size) if 7 + size <= left else b""
        if len(head) < 7 or len(data) < size or zlib.crc32(data, zlib.crc32(head[6:])) != check:
            damaged[f"a damaged record of {name} at byte {at:,}"] += 1
            parts = None
            file.seek(at + left)
            continue
        parts = [] if kind in (_FULL, _FIRST) else parts
        if parts is None:
            continue  # the rest of a damaged record
        parts.append(data)
        if sum(map(len, parts)) > MAX_RECORD:
            damaged[f"a record of {name} with more than {MAX_RECORD:,} bytes"] += 1
            parts = None
        elif kind in (_FULL, _END):
            yield b"".join(parts)
            parts = None


def _items(data: bytes, number: int) -> dict[str, Any]:
    """Return the items of a record, a nested one inside its parents. Values are JSON."""
    found: dict[str, Any] = {}
    for item in _all(data, number):
        keys = [_text(value) for field, value in fields_of(item) if field in (1, 2)]
        *above, name = keys or [""]
        place = found
        for key in above:
            inside = place.setdefault(key, {})
            place = inside if isinstance(inside, dict) else {}
        place[name] = json.loads(_last(item).get(16, b"null"))
    return found


def import_wandb(source: Path, settings: Settings) -> Iterator[ImportedRun]:
    """Import each log of W&B in a folder as a run."""
    paths = [source] if source.is_file() else sorted(source.rglob("run-*.wandb"))
    if not paths:
        raise ArgumentError(f"{str(source)!r} has no run-*.wandb: give the folder `wandb` of a training")
    for path in paths:
        with path.open("rb") as file:
            yield _import_wandb_run(path, file, settings, len(paths) == 1)


def _import_wandb_run(path: Path, file: BinaryIO, settings: Settings, is_only: bool) -> ImportedRun:
    damaged = Counter[str]()
    records = wandb_records(file, path.name, damaged)
    about: dict[int, Any] = {}
    waiting: list[tuple[int, bytes]] = []
    for record in records:  # the description is among the first
        with suppress(ValueError):
            waiting += [(number, value) for number, value in fields_of(record) if isinstance(value, bytes)]
        about = next((_last(value) for number, value in waiting if number == 17), {})
        if about or len(waiting) > 100:
            break
    name = _text(about.get(8)) or path.stem.removeprefix("run-")
    described = next((value for number, value in waiting if number == 17), b"")
    tags, texts = tuple(map(_text, _all(described, 10))), {"group": 6, "notes": 9}
    others = {"tags": tags, **{key: _text(about.get(number)) for key, number in texts.items()}}
    facts = {"imported from": str(path), "format": "W&B", "project": _text(about.get(3)), "host": _text(about.get(13))}
    chosen = _named(settings, name, is_only, **others)
    with ImportedRun(
        chosen, float(_last(about.get(17, b"")).get(1, 0)), {key: text for key, text in facts.items() if text}
    ) as run:
        log, config = Log(run, path.parent / "files"), dict[str, Any]()
        for number, value in _fields_together(waiting, records, run.missing):
            try:
                _add_wandb(log, config, number, value)
            except (ValueError, RecursionError):
                run.missing["damaged records"] += 1
        run.missing.update(damaged)
    return run


def _fields_together(
    first: Sequence[tuple[int, bytes]], records: Iterator[bytes], missing: Counter[str]
) -> Iterator[tuple[int, bytes]]:
    yield from first
    for record in records:
        try:
            yield from [(number, value) for number, value in fields_of(record) if isinstance(value, bytes)]
        except ValueError:
            missing["damaged records"] += 1


def _add_wandb(log: Log, config: dict[str, Any], number: int, value: bytes) -> None:
    if number == 2:  # a row of the history
        row = _items(value, 1)
        step = _last(_last(value).get(2, b"")).get(1, 0)
        time_s = float(row.pop("_timestamp", 0.0))
        for name, each in row.items():
            if not name.startswith("_"):
                log.add(_signed(step), time_s, name, each)
    elif number in (5, 17):
        given = value if number == 5 else _last(value).get(4, b"")
        config |= {name: each for name, each in _items(given, 1).items() if name != "_wandb"}
        if config:
            log.run.learn(config=config)
    elif number in _UNUSED:
        log.run.missing[f"records of {_UNUSED[number]}"] += 1


# Trackio: the runs of a project in a database.


def import_trackio(project: str, settings: Settings, environment: Mapping[str, str]) -> Iterator[ImportedRun]:
    """Import the runs of a project, or of the path of its database."""
    path = Path(project)
    if path.suffix != ".db":
        home = environment.get("HF_HOME") or "~/.cache/huggingface"
        safe = "".join(each for each in project if each.isalnum() or each in "-_") or "default"
        path = Path(environment.get("TRACKIO_DIR") or f"{home}/trackio").expanduser() / f"{safe}.db"
    if not path.is_file():
        raise ArgumentError(f"{str(path)!r} doesn't exist: give the name of a project, or the path of its .db")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            names = {column[1] for column in database.execute("PRAGMA table_info(metrics)")}
            key = "run_id" if "run_id" in names else "run_name"  # of older releases
            runs = database.execute(f"SELECT {key}, min(run_name) FROM metrics GROUP BY {key}").fetchall()
            for run_id, name in runs:
                chosen = _named(settings, str(name), len(runs) == 1, group=path.stem)
                yield _import_trackio_run(database, path, key, run_id, chosen)
    except sqlite3.Error as error:
        raise ArgumentError(f"{str(path)!r} can't be read as a database of Trackio: {error}") from None


def _import_trackio_run(
    database: sqlite3.Connection, path: Path, key: str, run_id: Any, chosen: Settings
) -> ImportedRun:
    facts = {"imported from": str(path), "format": "Trackio", "project": path.stem}
    config: dict[str, Any] = {}
    with suppress(sqlite3.Error, ValueError, TypeError):
        (found,) = database.execute(f"SELECT config FROM configs WHERE {key} = ?", (run_id,)).fetchone()
        config = {each: value for each, value in json.loads(found).items() if not each.startswith("_")}
    (first,) = database.execute(f"SELECT min(timestamp) FROM metrics WHERE {key} = ?", (run_id,)).fetchone()
    with ImportedRun(chosen, _second_of(first), facts) as run:
        if config:
            run.learn(config=config)
        log = Log(run, path.parent / "media")
        question = f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY step, id"
        for step, time_text, metrics in database.execute(question, (run_id,)):
            try:
                row = json.loads(metrics)
                for each, value in row.items():
                    log.add(int(step), _second_of(time_text), each, value)
            except (ValueError, TypeError, AttributeError, RecursionError):
                run.missing["rows that can't be read"] += 1
        with suppress(sqlite3.Error):
            (many,) = database.execute(f"SELECT count(*) FROM system_metrics WHERE {key} = ?", (run_id,)).fetchone()
            run.missing.update({"records of system metrics": many} if many else {})
    return run


def _second_of(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


# The command.


def import_logs(
    tool: str, source: str, settings: Settings, environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Import the logs of a tool, and say for each run what it has and what is missing."""
    path = Path(source)
    if tool != "trackio" and not path.exists():
        raise ArgumentError(f"{source!r} doesn't exist: give the folder with the logs, or one of them")
    ways: dict[str, Callable[[], Iterator[ImportedRun]]] = {
        "tensorboard": lambda: import_tensorboard(path, settings),
        "wandb": lambda: import_wandb(path, settings),
        "trackio": lambda: import_trackio(source, settings, environment),
    }
    for run in ways[tool]():
        found = ", ".join(counted(run.found[word], word) for word in _FOUND if run.found[word]) or "nothing"
        yield f"{run.name}: {found}\n  {run.place}"
        for what, many in run.missing.most_common(SHOWN):
            yield f"  not imported: {what} ({many:,})"
        if len(run.missing) > SHOWN:
            yield f"  not imported: {len(run.missing) - SHOWN:,} more reasons, which are events of the run"
