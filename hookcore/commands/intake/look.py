"""`hookcore look`: the weights in a file, as a run of one step; and what differs between two files."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.commands.intake import ImportedRun, MeasuredRow
from hookcore.commands.intake.weights import SHOWN, Weight, Weights, read_weights
from hookcore.config import Settings
from hookcore.errors import ArgumentError
from hookcore.observe import cpu
from hookcore.records import STAT_COLUMN, Coverage, ModuleRecord, Tap, Value
from hookcore.records.vocabulary import FORMAT, counted

PIECE: Final = 1 << 20  # values at a time that are converted
MAX_RANK: Final = 2048  # the shorter side of a matrix whose rank is computed
RANK_SHARE: Final = 2.0**-23  # of the largest singular value, times the longer side: smaller ones count as zero
RANK, STABLE = "rank", "stable rank"


@dataclass(frozen=True, slots=True)
class Measured:
    """A tensor, with its rank if it is a matrix that isn't too large."""

    weight: Weight
    row: MeasuredRow
    rank: tuple[int, float] | None = None

    def of(self, stat: str) -> float:
        """Return a column of its row."""
        return float(self.row.stats[STAT_COLUMN[stat]])


def measure(weight: Weight, meter: cpu.Meter) -> Measured:
    """Read a tensor once, and return its statistics."""
    stored = weight.read()
    for first in range(0, stored.size, stored.size if weight.type.convert is None and stored.size else PIECE):
        piece = stored[first:] if weight.type.convert is None else stored[first : first + PIECE]
        meter.add(weight.type.measurable(piece), weight.type.code)
    row = MeasuredRow(*meter.take())
    finite = row.stats[STAT_COLUMN["nan"]] + row.stats[STAT_COLUMN["inf"]] == 0
    return Measured(weight, row, rank_of(weight, stored) if finite else None)


def rank_of(weight: Weight, stored: NDArray[Any]) -> tuple[int, float] | None:
    """Return the rank of a matrix, and its stable rank: the squares of all singular values by that of the largest.

    None if it isn't a matrix of floats, or too large. The rank counts singular values above RANK_SHARE of the largest,
    times the longer side.
    """
    rows, columns = weight.sides
    shorter, longer = sorted((rows, columns))
    if not 0 < shorter <= MAX_RANK or not weight.type.name.startswith(("float", "bfloat")):
        return None
    gram = np.zeros((shorter, shorter))
    at_once = max(1, PIECE // columns)
    for first in range(0, rows, at_once):
        part = weight.type.numbers(stored[first * columns : (first + at_once) * columns]).reshape(-1, columns)
        if columns <= rows:
            gram += part.T @ part
    if columns > rows:
        for first in range(0, columns, max(1, PIECE // rows)):
            last = first + max(1, PIECE // rows)
            part = weight.type.numbers(stored.reshape(rows, columns)[:, first:last])
            gram += part @ part.T
    with np.errstate(all="ignore"):
        if not np.isfinite(gram).all():
            return None  # squares that float64 can't hold
        squares = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    largest = float(squares[-1])
    if not largest > 0:
        return 0, 0.0
    return int((squares > largest * (longer * RANK_SHARE) ** 2).sum()), float(squares.sum()) / largest


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """How a tensor of the other file differs from the first file's.

    `row` is that of the other one minus the first, where both are finite: a NaN is a problem of the weights.
    """

    name: str
    is_equal: bool  # all values, also if the types differ
    share: float  # the norm of the difference by the norm of the first
    changed: int  # values that are not equal
    bad: int  # those of these that are non-finite in one of both
    row: MeasuredRow
    about: str  # what else differs


def difference_of(one: Measured, other: Measured, meter: cpu.Meter) -> WeightDifference:
    """Compare two tensors of the same shape, value by value. Two NaNs are equal."""
    first, second, changed, bad = one.weight.read(), other.weight.read(), 0, 0
    for start in range(0, first.size, PIECE):
        a = one.weight.type.numbers(first[start : start + PIECE])
        b = other.weight.type.numbers(second[start : start + PIECE])
        with np.errstate(invalid="ignore", over="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            away = np.where(same, 0.0, b - a)
        changed += int(same.size - same.sum())
        finite = np.isfinite(away)
        bad += int(finite.size - finite.sum())
        meter.add(away[finite], cpu.FLOAT64)
    row = MeasuredRow(*meter.take())
    norm, base = float(row.stats[STAT_COLUMN["norm"]]), one.of("norm")
    share = norm / base if base > 0 else (math.inf if norm > 0 else 0.0)
    row.stats[STAT_COLUMN["ratio"]] = share if math.isfinite(share) else math.nan
    names = one.weight.type.name, other.weight.type.name
    about = f"{names[0]} and {names[1]}" if names[0] != names[1] else ""
    return WeightDifference(one.weight.name, not changed, share, changed, bad, row, about)


def look(paths: Sequence[Path], settings: Settings) -> str:
    """Send the weights of one or two files as runs of one step. Return what there is to say of them."""
    files = [read_weights(path) for path in paths]
    if not any(each.tensors for each in files):
        raise ArgumentError(
            f"{str(paths[0])!r} has no tensor that can be read: {dict(list(files[0].unread.items())[:3])}"
        )
    meter = cpu.Meter()
    measured: list[dict[str, Measured]] = []
    words: list[str] = []
    for place, file in enumerate(files):
        found = {name: measure(weight, meter) for name, weight in file.tensors.items()}
        measured.append(found)
        differences = _differences(measured, meter) if place else []
        run = _send(file, found, differences, settings, paths)
        words += _words_of(file, found, run)
        words += _words_of_both(files, measured, differences) if place else []
    return "\n".join(words)


def _differences(measured: Sequence[Mapping[str, Measured]], meter: cpu.Meter) -> list[WeightDifference]:
    one, other = measured
    both = [name for name in one if name in other and one[name].weight.shape == other[name].weight.shape]
    return [difference_of(one[name], other[name], meter) for name in both]


def _send(
    file: Weights,
    found: Mapping[str, Measured],
    differences: Sequence[WeightDifference],
    settings: Settings,
    paths: Sequence[Path],
) -> ImportedRun:
    now = time.time()
    name = settings.name if settings.name and len(paths) == 1 else file.path.name
    types = Counter(each.weight.type.name for each in found.values())
    facts: dict[str, Value] = {"file": str(file.path), FORMAT: file.format, **file.facts}
    facts |= {f"type.{kind}": f"{counted(many, 'tensor')}" for kind, many in types.items()}
    if differences:
        facts["updates"] = f"these weights minus those of {paths[0]}"
    with ImportedRun(replace(settings, name=name), now, facts) as run:
        run.describe(*_described(file, found))
        for each in found.values():
            tap = each.weight.tap
            run.add_row(0, now, tap, each.row)
            for word, value in zip((RANK, STABLE), each.rank or (), strict=False):
                run.add_row(0, now, Tap(tap.module, "probe", f"{word} of {tap.index}"), _row_of(value))
        for difference in differences:
            tap = found[difference.name].weight.tap
            run.add_row(0, now, Tap(tap.module, "update", tap.index), difference.row)
        for name, why in file.unread.items():
            run.missing[f"{name}: {why}"] += 1
    return run


def _row_of(value: float) -> MeasuredRow:
    meter = cpu.Meter()
    meter.add(np.array([value], np.float64), cpu.FLOAT64)
    return MeasuredRow(*meter.take())


def _described(file: Weights, found: Mapping[str, Measured]) -> tuple[list[ModuleRecord], list[Coverage]]:
    """Return the modules that the names of the tensors make, from the root on, and which have what could be read."""
    inside: dict[str, list[Weight]] = {"": []}
    for weight in (each.weight for each in found.values()):
        parts = weight.module.split(".") if weight.module else []
        for depth in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:depth]), [])
        inside[weight.module].append(weight)
    sizes = dict.fromkeys(inside, 0)
    for weight in (each.weight for each in found.values()):
        path: str | None = weight.module
        while path is not None:
            sizes[path] += math.prod(weight.shape)
            path = path.rpartition(".")[0] if path else None
    modules, coverage = [], []
    for path, own in inside.items():
        kind = " and ".join(dict.fromkeys(weight.type.name for weight in own)) or "(names only)"
        parent = path.rpartition(".")[0] if path else None
        shapes = tuple((weight.tap.index, weight.shape) for weight in own)
        modules.append(ModuleRecord(path, kind, parent, sizes[path], sizes[path], shapes=shapes))
        reason = "" if own else "no tensor has this name as its module"
        coverage.append(Coverage(path, kind, bool(own), ("param",) if own else (), reason))
    return modules, coverage


# The words for the terminal.


def _words_of(file: Weights, found: Mapping[str, Measured], run: ImportedRun) -> list[str]:
    values = sum(math.prod(each.weight.shape) for each in found.values())
    types = Counter(each.weight.type.name for each in found.values())
    kinds = ", ".join(f"{many:,} {kind}" for kind, many in types.most_common())
    lines = [f"{file.path} ({file.format}): {counted(len(found), 'tensor')} ({kinds}), {counted(values, 'value')}"]
    bad = [each for each in found.values() if each.of("nan") + each.of("inf") > 0]
    for each in bad[:SHOWN]:
        lines.append(
            f"  non-finite: {each.weight.name} has {each.of('nan'):,.0f} NaN and {each.of('inf'):,.0f} infinite"
        )
    lines += [f"  non-finite: {len(bad) - SHOWN:,} more tensors"] if len(bad) > SHOWN else []
    lines += [] if bad else ["  all values are finite"]
    zero = [name for name, each in found.items() if each.of("count") and each.of("zero") == each.of("count")]
    lines += [f"  all zero: {', '.join(zero[:SHOWN])}{_more(zero)}"] if zero else []
    matrices = [each for each in found.values() if each.rank is not None]
    low = sorted(
        (each for each in matrices if each.rank and each.rank[0] < _full(each)), key=lambda each: each.rank or (0, 0.0)
    )
    for each in low[:SHOWN]:
        assert each.rank is not None
        lines.append(f"  rank {each.rank[0]:,} of {_full(each):,}: {each.weight.name}, stable rank {each.rank[1]:,.1f}")
    lines += [f"  below full rank: {len(low) - SHOWN:,} more matrices"] if len(low) > SHOWN else []
    others = sum(each.weight.sides[0] > 0 for each in found.values()) - len(matrices)
    lines.append(
        f"  {counted(len(matrices), 'matrix') if len(matrices) == 1 else f'{len(matrices):,} matrices'} with a rank"
        + (f"; {others:,} without: a side above {MAX_RANK:,}, not floats, or non-finite" if others else "")
    )
    lines += [f"  not read: {name}: {why}" for name, why in list(file.unread.items())[:SHOWN]]
    lines += [f"  not read: {len(file.unread) - SHOWN:,} more"] if len(file.unread) > SHOWN else []
    return [*lines, f"  {run.place}"]


def _full(each: Measured) -> int:
    return min(each.weight.sides)


def _more(names: Sequence[object]) -> str:
    return f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""


def _words_of_both(
    files: Sequence[Weights], measured: Sequence[Mapping[str, Measured]], differences: Sequence[WeightDifference]
) -> list[str]:
    one, other = measured
    unequal = sorted((each for each in differences if not each.is_equal), key=lambda each: -each.share)
    equal = [each for each in differences if each.is_equal]
    lines = [
        f"compared {counted(len(differences), 'tensor')} of both files, value by value: {len(equal):,} equal, "
        f"{len(unequal):,} different"
    ]
    for each in unequal[:SHOWN]:
        most = max(abs(float(each.row.stats[STAT_COLUMN[name]])) for name in ("min", "max"))
        size = int(one[each.name].of("count"))
        about = (f"{each.bad:,} of these non-finite" if each.bad else "", each.about)
        changed = "; ".join(filter(None, (f"{each.changed:,} of {size:,} values", *about)))
        lines.append(f"  {each.name}: {each.share:.3g} of its norm, at most {most:.3g}, {changed}")
    lines += [f"  {len(unequal) - SHOWN:,} more differ less"] if len(unequal) > SHOWN else []
    retyped = [each.name for each in equal if each.about]
    lines += [f"  equal values of another type: {', '.join(retyped[:SHOWN])}{_more(retyped)}"] if retyped else []
    shapes = [name for name in one if name in other and one[name].weight.shape != other[name].weight.shape]
    lines += [
        f"  not compared: {name} has the shape {list(one[name].weight.shape)} in one file and "
        f"{list(other[name].weight.shape)} in the other"
        for name in shapes[:SHOWN]
    ]
    for place, (mine, others) in enumerate(((one, other), (other, one))):
        only = [name for name in mine if name not in others]
        lines += [f"  only in {files[place].path}: {', '.join(only[:SHOWN])}{_more(only)}"] if only else []
    return lines
