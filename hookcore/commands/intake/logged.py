"""What logs of trainings are made of: messages of protocol buffers, and values with a meaning that their type says."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.commands.intake import ImportedRun, row_of_buckets
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPE, MAX_MEDIA_BYTES, TABLE_TYPE, TEXT_TYPE

MAX_ROWS: Final = 1000  # of a table
_IMAGES: Final = (  # by how they begin
    (rb"\x89PNG\r\n\x1a\n", IMAGE_TYPE),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"RIFF....WEBP", "image/webp"),
    (rb"BM", "image/bmp"),
)
_DRAWN: Final = {"captions": ("caption", "captions"), "boxes and masks": ("boxes", "masks", "all_boxes", "all_masks")}
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


def last_of(data: bytes) -> dict[int, Any]:
    """Return the last value of each field."""
    return dict(fields_of(data))


def all_of(data: bytes, number: int) -> list[Any]:
    return [value for field, value in fields_of(data) if field == number]


def string_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def number_of(data: Any) -> float:
    """Return a float or a double; NaN if it is neither."""
    size = len(data) if isinstance(data, bytes) else 0
    return float(struct.unpack("<f" if size == 4 else "<d", data)[0]) if size in (4, 8) else math.nan


def signed_of(value: int) -> int:
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
            self.run.leave_out(f"values of type {type(value).__name__}, such as {name[:80]!r}")

    def _add_typed(self, step: int, time_s: float, name: str, value: Mapping[str, Any]) -> None:
        kind = str(value["_type"]).removeprefix("trackio.")
        if kind == "histogram":
            edges, counts = (np.array(value.get(each, ()), np.float64) for each in ("bins", "values"))
            self.add_histogram(step, time_s, name, edges, counts)
        elif kind in ("image-file", "image"):
            self._add_drawn(value)
            self.add_image(step, time_s, name, self._file(_path_of(value)))
        elif kind in ("images/separated", "images"):
            self._add_drawn(value)
            for place, path in enumerate(value.get("filenames", ())):
                self.add_image(step, time_s, f"{name}/{place}", self._file(path))
        elif kind in ("video-file", "video") and (_path_of(value) or "").endswith(".gif"):
            self.add_image(step, time_s, name, self._file(_path_of(value)))
        elif kind in ("table", "table-file"):
            self._add_table(step, time_s, name, value)
        elif kind == "plotly-file":
            self._add_figure(step, time_s, name, self._file(_path_of(value)))
        else:
            self.run.leave_out(f"values of type {kind[:80]}, such as {name[:80]!r}")

    def _add_drawn(self, value: Mapping[str, Any]) -> None:
        """Count what W&B shows with an image."""
        for what, keys in _DRAWN.items():
            if any(value.get(key) for key in keys):
                self.run.leave_out(f"{what} of images")

    def _add_figure(self, step: int, time_s: float, name: str, data: bytes | None) -> None:
        with suppress(ValueError):
            figure = json.loads(data or b"null", parse_constant=_refuse)  # browsers read no NaN
            if isinstance(figure, Mapping) and isinstance(figure.get("data"), list):
                self.run.add_media(step, time_s, name, FIGURE_TYPE, data or b"", "figure")
                return
        self.run.missing[f"figures whose file is missing, damaged, or above {MAX_MEDIA_BYTES:,} bytes"] += 1

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
        """Add a picture, if a browser can show it."""
        if data is None:
            self.run.missing[f"images whose file is missing or above {MAX_MEDIA_BYTES:,} bytes"] += 1
            return
        kind = next((kind for start, kind in _IMAGES if re.match(start, data, re.DOTALL)), None)
        if kind is None:
            self.run.leave_out("images that are neither PNG, JPEG, GIF, WebP, nor BMP")
        else:
            self.run.add_media(step, time_s, name, kind, data, "image")

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


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _path_of(value: Mapping[str, Any]) -> str | None:
    path = value.get("path") or value.get("file_path")
    return path if isinstance(path, str) else None
