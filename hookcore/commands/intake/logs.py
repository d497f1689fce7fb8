"""`hookcore import`: logs of TensorBoard, W&B, and Trackio, as runs.

Their files are read here, record by record, so that none of these tools has to be installed: event files and W&B's logs
are records with a checksum, each of which is a protocol buffer; Trackio has a database of SQLite.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import re
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.commands.intake import ImportedRun
from hookcore.commands.intake.logged import Log, all_of, fields_of, last_of, number_of, signed_of, string_of
from hookcore.config import Settings
from hookcore.errors import ArgumentError
from hookcore.records.vocabulary import (
    CPU_MACHINE,
    CPU_PROCESS,
    DISK_READ,
    DISK_WRITTEN,
    FORMAT,
    MEMORY_MACHINE,
    MEMORY_PROCESS,
    NET_RECEIVED,
    NET_SENT,
    SYSTEM,
    TEXT_TYPE,
    counted,
)

MAX_RECORD: Final = 64 * 2**20  # bytes; larger ones are counted
SHOWN: Final = 12
_FOUND: Final = ("scalar value", "histogram", "image", "text", "table", "figure", "machine value")


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
            time_s = number_of(value)
        elif number == 2:
            step = signed_of(value)
        elif number == 5:
            values = all_of(value, 1)
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
            self.log.run.leave_out(event.other)
        for data in event.values:
            try:
                self._add_value(event.step, event.time_s, last_of(data))
            except (ValueError, struct.error, IndexError, AttributeError):
                self.log.run.missing["damaged values"] += 1

    def _add_value(self, step: int, time_s: float, value: dict[int, Any]) -> None:
        tag = string_of(value.get(1))
        if 9 in value:
            plugin = last_of(last_of(value[9]).get(1, b""))
            self.plugins[tag] = string_of(plugin.get(1))
            if self.plugins[tag] == "hparams":
                self._add_hyperparameters(plugin.get(2, b""))
                return
        if 2 in value:
            self.log.run.add_scalar(step, time_s, tag, number_of(value[2]))
        elif 4 in value:
            self.log.add_image(step, time_s, tag, last_of(value[4]).get(4))
        elif 5 in value:
            self._add_histogram(step, time_s, tag, last_of(value[5]))
        elif 8 in value:
            self._add_tensor(step, time_s, tag, value[8])
        else:
            self.log.run.leave_out("audio and other values" if 6 in value else "empty values")

    def _add_hyperparameters(self, content: bytes) -> None:
        """Read the protocol buffers of the plugin: what a session started with is a map to typed values."""
        for entry in all_of(last_of(content).get(3, b""), 1):
            pair = last_of(entry)
            (kind, value), *_ = last_of(pair[2]).items()
            given = {2: number_of, 3: string_of, 4: bool}.get(kind, lambda _: None)(value)
            self.hyperparameters[string_of(pair[1])] = given
        if self.hyperparameters:
            self.log.run.learn(config=self.hyperparameters)

    def _add_histogram(self, step: int, time_s: float, tag: str, histogram: dict[int, Any]) -> None:
        limits, counts = (np.frombuffer(histogram.get(each, b""), "<f8") for each in (6, 7))
        low, high, many, total, squares = (number_of(histogram.get(each)) for each in (1, 2, 3, 4, 5))
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
            self.log.run.leave_out(f"values of the plugin {plugin[:80] or '(unknown)'}")


def _tensor_of(data: bytes) -> tuple[NDArray[np.float64], list[bytes]]:
    """Return the numbers and the texts of a tensor."""
    found = last_of(data)
    kind = _TENSORS.get(found.get(1, 0))
    if found.get(4) and kind:
        return np.frombuffer(found[4], kind).astype(np.float64), []
    numbers = [np.frombuffer(value, _LISTED[n]) for n, value in fields_of(data) if n in _LISTED]
    return np.concatenate([np.empty(0), *numbers]).astype(np.float64), all_of(data, 8)


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
        facts = {"imported from": str(place), FORMAT: "TensorBoard"}
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
_UNUSED: Final = {4: "console output", 8: "artifacts", 10: "alerts", 13: "console output"}


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
    for item in all_of(data, number):
        keys = [string_of(value) for field, value in fields_of(item) if field in (1, 2)]
        *above, name = keys or [""]
        place = found
        for key in above:
            inside = place.setdefault(key, {})
            place = inside if isinstance(inside, dict) else {}
        place[name] = json.loads(last_of(item).get(16, b"null"))
    return found


_MB: Final = 2.0**20
# Their names, ours, the unit, and whether it is a sum since the start. Those of one name, such as cores, are added up.
_SENSORS: Final = (
    (r"gpu\.(\d+)\.gpu", rf"{SYSTEM}gpu\1/utilization", 1.0, False),
    (r"gpu\.(\d+)\.memoryAllocatedBytes", rf"{SYSTEM}gpu\1/memory", 1.0, False),
    (r"gpu\.(\d+)\.powerWatts", rf"{SYSTEM}gpu\1/power", 1.0, False),
    (r"gpu\.(\d+)\.temp", rf"{SYSTEM}gpu\1/temperature", 1.0, False),
    (r"cpu\.\d+\.cpu_percent", CPU_MACHINE, 0.01, False),
    (r"proc\.memory\.rssMB", MEMORY_PROCESS, _MB, False),
    (r"network\.recv", NET_RECEIVED, 1.0, True),
    (r"network\.sent", NET_SENT, 1.0, True),
    (r"disk\.(?:.+\.)?in", DISK_READ, _MB, True),
    (r"disk\.(?:.+\.)?out", DISK_WRITTEN, _MB, True),
)


@dataclass(slots=True)
class WandbMachine:
    """W&B's samples of the machine, averaged over those before a row, since they belong to its step."""

    cores: int = 0
    waiting: dict[str, tuple[float, int]] = field(default_factory=dict)  # sums and counts
    others: Counter[str] = field(default_factory=Counter)  # names without a series here
    before: tuple[float, dict[str, float]] = (math.nan, {})  # the time of the last sample, and its sums since the start

    def add(self, sample: bytes) -> None:
        """Add a sample."""
        when = last_of(last_of(sample).get(2, b""))
        given = {key: float(value) for key, value in _items(sample, 3).items() if isinstance(value, int | float)}
        found, totals = self._derived(given), dict[str, float]()
        for key, value in given.items():
            name, unit, is_total = _series_of(key)
            if name:
                into = totals if is_total else found
                into[name] = into.get(name, 0.0) + value * unit
            else:
                self.others[key] += 1
        found |= self._rates(when.get(1, 0) + when.get(2, 0) / 1e9, totals)
        for name, value in found.items():
            total, many = self.waiting.get(name, (0.0, 0))
            self.waiting[name] = total + value, many + 1

    def _derived(self, given: dict[str, float]) -> dict[str, float]:
        """Take what has another meaning here out of a sample."""
        found = {}
        if self.cores and "cpu" in given:
            found[CPU_PROCESS] = given.pop("cpu") / 100 * self.cores  # a share of all cores
        used = given.get("memory_percent", math.nan) / 100
        if 0 <= used < 1 and "proc.memory.availableMB" in given:  # both are of one total
            del given["memory_percent"]
            found[MEMORY_MACHINE] = given.pop("proc.memory.availableMB") * _MB * used / (1 - used)
        return found

    def _rates(self, time_s: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Return what was moved per second since the sample before."""
        (before_s, before), self.before = self.before, (time_s, dict(totals))
        passed = time_s - before_s
        if not passed > 0:
            return {}
        # A training that was resumed counts from 0 again.
        return {
            name: (now - before[name]) / passed for name, now in totals.items() if now >= before.get(name, math.inf)
        }

    def flush(self, run: ImportedRun, step: int, time_s: float) -> None:
        """Add what waits to a step."""
        for name, (total, many) in self.waiting.items():
            run.add_scalar(step, time_s, name, total / many, "machine value")
        self.waiting.clear()


def _series_of(key: str) -> tuple[str, float, bool]:
    """Return the name of a series, its unit, and whether it is a sum since the start. There may be none: ""."""
    for pattern, name, unit, is_total in _SENSORS:
        if found := re.fullmatch(pattern, key):
            return found.expand(name), unit, is_total
    return "", 1.0, False


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
        about = next((last_of(value) for number, value in waiting if number == 17), {})
        if about or len(waiting) > 100:
            break
    name = string_of(about.get(8)) or path.stem.removeprefix("run-")
    described = next((value for number, value in waiting if number == 17), b"")
    tags, texts = tuple(map(string_of, all_of(described, 10))), {"group": 6, "notes": 9}
    others = {"tags": tags, **{key: string_of(about.get(number)) for key, number in texts.items()}}
    facts = {
        "imported from": str(path),
        FORMAT: "W&B",
        "project": string_of(about.get(3)),
        "host": string_of(about.get(13)),
    }
    chosen = _named(settings, name, is_only, **others)
    with ImportedRun(
        chosen, float(last_of(about.get(17, b"")).get(1, 0)), {key: text for key, text in facts.items() if text}
    ) as run:
        log = WandbLog(Log(run, path.parent / "files"), WandbMachine(), {})
        for number, value in _fields_together(waiting, records, run.missing):
            try:
                log.add(number, value)
            except (ValueError, RecursionError):
                run.missing["damaged records"] += 1
        log.end()
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


@dataclass(slots=True)
class WandbLog:
    """The records of one log."""

    log: Log
    machine: WandbMachine
    config: dict[str, Any]
    newest: tuple[int, float] | None = None  # the step of the last row, and its time

    def add(self, number: int, value: bytes) -> None:
        """Add a record to the run."""
        if number == 2:
            self._add_row(value)
        elif number in (5, 17):
            given = value if number == 5 else last_of(value).get(4, b"")
            self.config |= {name: each for name, each in _items(given, 1).items() if name != "_wandb"}
            if self.config:
                self.log.run.learn(config=self.config)
        elif number == 7:
            self.machine.add(value)
        elif number == 26:  # the environment, in parts
            about = last_of(value)
            self.machine.cores = about.get(17) or about.get(16) or self.machine.cores
        elif number in _UNUSED:
            self.log.run.leave_out(f"records of {_UNUSED[number]}")

    def _add_row(self, value: bytes) -> None:
        row = _items(value, 1)
        step = signed_of(last_of(last_of(value).get(2, b"")).get(1, 0))
        time_s = float(row.pop("_timestamp", 0.0))
        for name, each in row.items():
            if not name.startswith("_"):
                self.log.add(step, time_s, name, each)
        self.newest = (step, time_s)
        self.machine.flush(self.log.run, *self.newest)

    def end(self) -> None:
        """Add the samples after the last row to its step, and say which have no series here."""
        if self.newest:
            self.machine.flush(self.log.run, *self.newest)
        elif self.machine.waiting:
            self.log.run.leave_out("samples of the machine, because there is no step")
        if others := self.machine.others:
            names = ", ".join(sorted(others))
            self.log.run.leave_out(f"system metrics that hookcore has no series for: {names}", sum(others.values()))


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
    facts = {"imported from": str(path), FORMAT: "Trackio", "project": path.stem}
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
            if many:
                run.leave_out("records of system metrics", many)
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
