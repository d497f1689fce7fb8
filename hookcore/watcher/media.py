"""Images, texts, tables, and figures of the user, as a media type and bounded bytes."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hookcore.config.flat import cut_text
from hookcore.errors import ArgumentError
from hookcore.reading.pictures import image_of
from hookcore.records import text_of
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPE, MAX_MEDIA_BYTES, TABLE_TYPE, TEXT_TYPE

MAX_SIDE: Final = 1024  # pixels
MAX_ROWS: Final = 1000
MAX_COLUMNS: Final = 100
MAX_CELL: Final = 1000  # characters
_SHAPES: Final = "[row, column], [row, column, 3 or 4], or [3 or 1, row, column]"


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of an item, and their number before it was shortened."""

    type: str
    data: bytes
    whole: int


def text_content(text: object) -> Content:
    """Return a string as bytes; its end is cut off if it is too long."""
    data = text_of(str(text)).encode()
    return Content(TEXT_TYPE, data[:MAX_MEDIA_BYTES].decode("utf-8", "ignore").encode(), len(data))


def table_content(table: Any) -> Content:
    """Return the first rows of a table: a mapping of columns, mappings, or a DataFrame."""
    columns, rows, total = _table_of(table)
    if len(columns) > MAX_COLUMNS:
        raise ArgumentError(f"the table has {len(columns)} columns: give at most {MAX_COLUMNS}")
    cells = [[_cell(value) for value in row] for row in rows]
    said = {"columns": [cut_text(text_of(str(name)), MAX_CELL) for name in columns], "rows": cells, "total": total}
    data = _json_of(said)
    while cells and len(data) > MAX_MEDIA_BYTES:
        said["rows"] = cells = cells[: len(cells) // 2]
        data = _json_of(said)
    return Content(TABLE_TYPE, data, len(data))


def _table_of(table: Any) -> tuple[list[Any], list[Sequence[Any]], int]:
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # a DataFrame of pandas or a similar library
        names = list(table.columns)
        head = table.head(MAX_ROWS)
        return names, list(zip(*(list(head[name]) for name in names), strict=True)), len(table)
    if isinstance(table, Mapping):
        columns = {name: list(values) for name, values in table.items()}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{name}: {len(values)}" for name, values in columns.items())
            raise ArgumentError(
                f"the columns of the table have different lengths ({sizes}): give the same number of values for each"
            )
        total = len(next(iter(columns.values()), []))
        return list(columns), list(zip(*(values[:MAX_ROWS] for values in columns.values()), strict=True)), total
    if isinstance(table, Iterable) and not isinstance(table, str | bytes):
        listed = list(table)
        if all(isinstance(row, Mapping) for row in listed):
            names = list(dict.fromkeys(name for row in listed for name in row))
            return names, [[row.get(name) for name in names] for row in listed[:MAX_ROWS]], len(listed)
    raise ArgumentError(
        f"the table has the type {type(table).__name__}: give a mapping of columns, a list of mappings, or a DataFrame"
    )


def _cell(value: Any) -> bool | int | float | str | None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic | np.ndarray) and value.size == 1:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return cut_text(text_of(str(value)), MAX_CELL)


def image_content(image: Any) -> Content:
    """Return an image as PNG, from an array, a tensor, or a Pillow image. A large image is subsampled."""
    pixels = _pixels_of(image)
    step = -(-max(pixels.shape[:2]) // MAX_SIDE)
    whole = pixels.size
    data = image_of(np.ascontiguousarray(pixels[::step, ::step]))
    while len(data) > MAX_MEDIA_BYTES:  # noise
        step += 1
        data = image_of(np.ascontiguousarray(pixels[::step, ::step]))
    return Content(IMAGE_TYPE, data, len(data) if step == 1 else max(whole, len(data) + 1))


def _pixels_of(image: Any) -> NDArray[np.uint8]:
    first = (1, 3, 4) if isinstance(image, torch.Tensor) else (1, 3)  # torch has the channels first
    last = () if isinstance(image, torch.Tensor) else (3, 4)
    if isinstance(image, torch.Tensor):
        image = image.detach().to("cpu", torch.float32 if image.is_floating_point() else image.dtype).numpy()
    values = np.asarray(image)
    if values.ndim == 3 and values.shape[0] in first and values.shape[2] not in last:
        values = np.moveaxis(values, 0, 2)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or not values.size:
        raise ArgumentError(f"the image has the shape {values.shape}: give {_SHAPES}")
    return np.repeat(_levels_of(values), 3, axis=2) if values.shape[2] == 1 else _levels_of(values)[:, :, :3]


def _levels_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype == np.uint8:
        return values
    low, high = float(values.min()), float(values.max())
    most = 1.0 if values.dtype.kind == "f" else 255.0
    if not (low >= 0.0 and high <= most):  # also if one is NaN
        raise ArgumentError(
            f"the image has values from {low:g} to {high:g}: give integers from 0 to 255, or floats from 0 to 1"
        )
    return np.rint(values * (255.0 / most)).astype(np.uint8)


_NUMBERED: Final = 20  # columns; numbers of more would overlap


@dataclass(frozen=True, slots=True)
class Squares:
    """A figure of numbers with their colors, as Plotly reads it: a row and a column for each name. NaN stays empty."""

    values: NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    ends: tuple[float, float]  # of the colors

    def to_plotly_json(self) -> dict[str, Any]:
        """Return its data and layout."""
        numbers = [[value if math.isfinite(value) else None for value in row] for row in self.values.tolist()]
        words = [["" if value is None else f"{value:.2f}" for value in row] for row in numbers]
        colors = {"zmin": self.ends[0], "zmax": self.ends[1], "colorscale": "RdBu" if self.ends[0] < 0 else "Viridis"}
        trace = {"type": "heatmap", "x": self.columns, "y": self.rows, "z": numbers, "text": words, **colors}
        plain = {"color": "#888", "size": 11}
        layout: dict[str, Any] = {
            "title": {"text": self.title},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": plain,
            "xaxis": {"type": "category", "automargin": True, "showgrid": False},
            "yaxis": {"type": "category", "automargin": True, "showgrid": False, "autorange": "reversed"},
            "margin": {"l": 40, "r": 10, "t": 40, "b": 40},
            "height": 140 + 22 * len(self.rows),
        }
        fits = {"texttemplate": "%{text}"} if len(self.columns) <= _NUMBERED else {}
        return {"data": [{**trace, **fits, "hoverongaps": False}], "layout": layout}

    def to_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_plotly_json())


def figure_content(figure: Any) -> Content:
    """Return a Plotly figure as JSON, or a Matplotlib figure as PNG."""
    if hasattr(figure, "to_plotly_json"):
        data = str(figure.to_json()).encode()
        kind = FIGURE_TYPE
    elif hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        data, kind = buffer.getvalue(), IMAGE_TYPE
    else:
        raise ArgumentError(f"the figure has the type {type(figure).__name__}: give a Plotly or Matplotlib figure")
    if len(data) > MAX_MEDIA_BYTES:
        raise ArgumentError(
            f"the figure has {len(data):,} bytes: give one with fewer points and at most {MAX_MEDIA_BYTES:,} bytes"
        )
    return Content(kind, data, len(data))


def _json_of(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
