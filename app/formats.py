"""The formats of answers, and their negotiation: JSON, Arrow, CSV, npy, and the rest.

JSON has no NaN and no infinities: they are the strings "NaN", "Infinity", and "-Infinity". CSV has nan, inf, and -inf.
Arrow and npy have the real values.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import orjson
from markupsafe import Markup
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hookcore.delivery.archive.arrow import csv, pa

MEDIA_TYPES: Final = {
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv",
    "npy": "application/x-npy",
    "safetensors": "application/vnd.safetensors",
    "png": "image/png",
}
ARRAYS: Final = ("json", "arrow", "csv", "npy")
TENSORS: Final = ("json", "npy", "safetensors", "csv", "png")
# First characters of a cell that a spreadsheet runs as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_MAX_RANGES: Final = 50  # of one Accept header


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered format that a client prefers (the first of equals); raise 406 if it accepts none."""
    ranges = _ranges_of(accept or "*/*")
    qualities = [_quality(MEDIA_TYPES[name], ranges) for name in offered]
    best = max(qualities)
    if best > 0:
        return offered[qualities.index(best)]
    raise refuse(accept or "", offered)


def refuse(given: str, offered: Sequence[str]) -> HTTPException:
    """Return an error that lists the available formats."""
    there_is = ", ".join(f"{MEDIA_TYPES[name]} (format={name})" for name in offered)
    return HTTPException(406, f"{given[:200]!r} is not available here: request one of {there_is}")


def _ranges_of(accept: str) -> list[tuple[str, float]]:
    ranges = []
    for part in accept.split(",")[:_MAX_RANGES]:
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            ranges.append((name, min(max(float(quality), 0.0), 1.0)))
        except ValueError:
            continue
    return ranges


def _quality(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return the quality of the narrowest range that contains the type."""
    for wanted in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        found = [quality for name, quality in ranges if name == wanted]
        if found:
            return max(found)
    return 0.0


def word_of(value: float) -> float | str:
    """Return a number as JSON can represent it."""
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def json_of(content: Any) -> bytes:
    """Encode answers, dicts, and lists as JSON. Arrays and `Number` may contain NaN; use `word_of` for floats."""
    return _ENCODER.encode(content)


def script_json(content: Any) -> Markup:
    """Return JSON for a data block in a page: no value in it can end the block."""
    return Markup(json_of(content).decode().replace("<", "\\u003c"))


class StrictJson(JSONResponse):
    """A response that any JSON parser can read."""

    def render(self, content: Any) -> bytes:
        return json_of(content)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return array_json(value)
    if isinstance(value, float):
        return word_of(float(value))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_encode)


def array_json(values: NDArray[Any]) -> msgspec.Raw:
    """Return an array of any shape as nested lists, with words for non-finite values; a complex number is a pair."""
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
    if values.ndim == 0:
        return msgspec.Raw(_array_bytes(values.reshape(1))[1:-1])
    return msgspec.Raw(_array_bytes(values))


def _array_bytes(values: NDArray[Any]) -> bytes:
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if not native.size:
        return orjson.dumps(native.tolist())
    data = orjson.dumps(native, option=orjson.OPT_SERIALIZE_NUMPY)
    if native.dtype.kind != "f":
        return data
    # orjson writes null for non-finite values. Searching its text is ten times as fast as checking each number.
    bad = native[~np.isfinite(native)]
    if not len(bad):
        return data
    if bool(np.isnan(bad).all()):
        return data.replace(b"null", b'"NaN"')
    pieces = data.split(b"null")
    words = [f'"{word_of(value)}"'.encode() for value in bad.tolist()]
    mixed = [piece for pair in zip(pieces, words, strict=False) for piece in pair]
    return b"".join([*mixed, pieces[-1]])


def plain(value: Any, depth: int = 20) -> Any:
    """Return a trainer's value in a form that JSON can represent, so that no value can break an answer."""
    if isinstance(value, float):
        return word_of(value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if depth and isinstance(value, Mapping):
        return {str(name): plain(item, depth - 1) for name, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    return str(value)[:1000]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of one length: arrays of numbers, or lists of texts. npy has the `matrix`, if there is one."""

    columns: Mapping[str, NDArray[Any] | list[str]]
    matrix: NDArray[Any] | None = None

    @classmethod
    def of(cls, answer: Any, matrix: str = "") -> Table:
        """Return the columns of an answer, with the matrix that has this name, if there is one."""
        return cls(answer.columns(), getattr(answer, matrix, None) if matrix else None)

    def encode(self, name: str) -> bytes:
        """Encode the table in one of ARRAYS except JSON."""
        return {"arrow": self.as_arrow, "csv": self.as_csv, "npy": self.as_npy}[name]()

    def as_arrow(self) -> bytes:
        """Encode the table as an Arrow stream."""
        sink = io.BytesIO()
        table = self._arrow()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def as_csv(self) -> bytes:
        """Encode CSV with a header, and without cells that a spreadsheet would run as formulas."""
        sink = io.BytesIO()
        columns = {
            inert(name): [inert(text) for text in values] if isinstance(values, list) else values
            for name, values in self.columns.items()
        }
        csv.write_csv(Table(columns)._arrow(), sink)
        return sink.getvalue()

    def as_npy(self) -> bytes:
        """Encode a NumPy file: the matrix, or the columns of numbers as a structured array, without texts."""
        return npy_of(self._structured() if self.matrix is None else self.matrix)

    def _arrow(self) -> pa.Table:
        names = list(self.columns)
        arrays = [pa.array(values, pa.string() if isinstance(values, list) else None) for values in self._values()]
        return pa.Table.from_arrays(arrays, names)

    def _values(self) -> list[Any]:
        return list(self.columns.values())

    def _structured(self) -> NDArray[Any]:
        numbers = {name: values for name, values in self.columns.items() if isinstance(values, np.ndarray)}
        rows = len(self._values()[0]) if self.columns else 0
        records = np.empty(rows, [(name, values.dtype) for name, values in numbers.items()])
        for name, values in numbers.items():
            records[name] = values
        return records


def inert(text: str) -> str:
    """Return the text, with a leading quote mark if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_of(matrix: NDArray[Any]) -> bytes:
    """Return a matrix of real numbers as CSV, with columns named by their index."""
    numbers = matrix.astype(np.float32) if matrix.dtype == np.float16 else matrix
    native = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("=")).ravel()
    texts = pa.array(native).cast(pa.string()).to_pylist()
    rows, columns = matrix.shape
    lines = [",".join(f'"{place}"' for place in range(columns))]
    lines += [",".join(texts[row * columns : (row + 1) * columns]) for row in range(rows)]
    return "\n".join([*lines, ""]).encode()


def npy_of(values: NDArray[Any]) -> bytes:
    """Encode an array as a NumPy file, without objects."""
    sink = io.BytesIO()
    np.save(sink, np.ascontiguousarray(values) if values.ndim else values, allow_pickle=False)
    return sink.getvalue()


def words_of(first: int, last: int) -> str:
    """Return a range of steps in words."""
    return f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"


def text_of_setting(value: Any) -> str:
    """Format a setting in words, not as JSON. 1 and 1.0 are the same."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(text_of_setting, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text_of_setting(item)}" for name, item in value.items()) or "none"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
