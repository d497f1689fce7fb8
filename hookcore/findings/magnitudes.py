"""Rules that compare a magnitude with its past, or with training; the gate that notices changes; non-finite values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import RECENT, SPARK, WARM_UP, Finding, RuleName, Since, after_last
from hookcore.findings.losses import Losses, last_output
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import Logs, MagnitudeWindow
from hookcore.records import GRADIENT_KINDS, KINDS, Kind, Severity, Tap
from hookcore.records.vocabulary import KIND_WORDS, counted, is_bias
from hookcore.store import NonfiniteTaps, Store, TapList
from hookcore.store.incidents import Feeding, Incident, around, rank_of

# Groups of taps whose changes began together, each with the one that can have caused the others.


@dataclass(frozen=True, slots=True)
class Group:
    """Taps with one cause: the index of the first, its column, the number of other modules, and every (column, tap)."""

    place: int
    column: int
    downstream: int
    members: tuple[tuple[int, int], ...]


def groups_of(
    onsets: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    taps: Sequence[Tap],
    gap: int,
    flow: Callable[[], Feeding | None] = lambda: None,
) -> list[Group]:
    """Group (column, index) pairs whose onsets follow each other within `gap` columns; the first of each leads.

    Of those that began in one column, it is the one that no other one feeds, else what the model computes first.
    """
    groups: list[list[tuple[int, int]]] = []
    for column, place in sorted(onsets):
        if not groups or column - groups[-1][-1][0] > gap:
            groups.append([])
        groups[-1].append((column, place))
    return [_group(members, numbers, taps, flow) for members in groups]


def _group(
    members: list[tuple[int, int]], numbers: Sequence[int], taps: Sequence[Tap], flow: Callable[[], Feeding | None]
) -> Group:
    modules = {taps[place].module for _, place in members}
    holders = around(modules)
    column, place = min(members, key=lambda each: rank_of(each[0], numbers[each[1]], taps[each[1]], holders))
    began = {numbers[each]: each for start, each in members if start == column}
    feeding = flow() if len(began) > 1 else None
    source = None if feeding is None else feeding.first(began, numbers, taps[place].kind)
    if source is not None:
        place = began[source.number]
    return Group(place, column, len(modules) - 1, tuple((column, numbers[place]) for column, place in members))


_TOGETHER: Final = 2  # columns within which onsets share a cause

Severities = Callable[[int], Severity]
Sentence = Callable[[RuleName, Kind, float, float], Since]  # rule, kind, value, usual


@dataclass(frozen=True, slots=True)
class Shift:
    """The result of a rule: tap indexes, the first column of each, and the usual value of every tap."""

    rule: RuleName
    places: NDArray[np.intp]
    onsets: Sequence[int]
    usual: Logs
    severity: Severities


def find_sizes(window: MagnitudeWindow, losses: Losses, spikes_reported: int | None = None) -> list[Finding]:
    """Return findings about magnitudes of any kind: exploding, vanishing, and spikes (see `findings_of`)."""
    if not window.have_past:
        return []
    exploding, vanishing = _exploding(window), _vanishing(window)
    grown = [
        judged for finding in _findings_of(window, exploding, _size_sentence) if (judged := _weigh(finding, losses))
    ]
    faded = _findings_of(window, vanishing, _size_sentence)
    if losses.are_solved:
        faded = [replace(each, severity="info") for each in faded]
    return grown + faded + _spikes(window, exploding.places, losses, spikes_reported)


def _weigh(finding: Finding, losses: Losses) -> Finding | None:
    """Weigh growth by its effect on the loss: if the loss doesn't get worse, growth is learning."""
    limits = limits_of(losses.store, "exploding")
    if finding.value > limits["error_factor"] * finding.usual or finding.value > limits["large"]:
        return finding
    worsened = losses.worsened(finding.since_step)
    if worsened is None:
        return replace(finding, severity="info").adding("; no loss is logged to judge its effect")
    return finding if worsened else None


def find_updates(window: MagnitudeWindow) -> list[Finding]:
    """Return findings about updates that are too large or too small relative to their weights."""
    if not window.have_past:
        return []
    shifts = _large(window), _stalled(window)
    return [finding for shift in shifts for finding in _findings_of(window, shift, _share_sentence)]


def _exploding(window: MagnitudeWindow) -> Shift:
    limits = limits_of(window.store, "exploding")
    usual, spread = window.past.usual, window.past.below
    rise = window.now - usual
    far = np.maximum(np.log10(limits["factor"]), limits["spreads"] * spread)
    # An old explosion has become its own past, but it is still far above the start of the run.
    since_early = window.now - window.early > np.log10(limits["error_factor"])
    usual = np.where(since_early, window.early, usual)
    rise = window.now - usual
    places = np.flatnonzero(since_early | (rise > far))  # NaN compares as False

    def severity(place: int) -> Severity:
        return "error" if rise[place] > np.log10(limits["error_factor"]) else RULES["exploding"].severity

    return Shift("exploding", places, _onsets(window, places, usual, above=True), usual, severity)


def _vanishing(window: MagnitudeWindow) -> Shift:
    limits = limits_of(window.store, "vanishing")
    kinds = window.taps.fact(_kinds_of)
    is_gradient = np.isin(kinds, [KINDS.index(kind) for kind in GRADIENT_KINDS])
    # If it was zero for the whole window, only the start of the run shows the usual value.
    usual = np.where(np.isnan(window.past.usual), window.early, window.past.usual)
    spread = np.nan_to_num(window.past.above)
    now = window.now.copy()
    now[window.is_nothing] = -np.inf
    fall = usual - now
    beside, alike, least = np.full((3, len(now)), np.nan)
    for kind in np.unique(kinds[is_gradient]):
        same = kinds == kind
        beside[same], alike[same], least[same] = _ranked(now[same], 2), _ranked(fall[same], 2), _ranked(fall[same], 10)
    fell = fall > np.maximum(np.log10(limits["factor"]), limits["spreads"] * spread)
    shrinks = fall > np.maximum(np.log10(limits["shrinks"]), 3 * spread)
    tiny = now < beside - np.log10(limits["beside_factor"])
    places = np.flatnonzero(is_gradient & (fell | (tiny & shrinks)))
    usually_zero = [window.is_nothing[place] and _is_often_zero(window.columns.size[:, place]) for place in places]
    places = places[~np.array(usually_zero, bool)]

    def severity(place: int) -> Severity:
        if np.isinf(alike[place]):  # most updates are zero: no training is that complete
            return RULES["vanishing"].severity
        fell_alike = fall[place] - alike[place] < np.log10(limits["alike"])
        # Most layers of a short stack may lie before the one that stops the gradient.
        if fall[place] > np.log10(limits["beside_factor"]) and least[place] < np.log10(limits["shrinks"]):
            fell_alike = False
        return "info" if fell_alike else RULES["vanishing"].severity

    return Shift("vanishing", places, _onsets(window, places, usual, above=False), usual, severity)


def _kinds_of(taps: TapList) -> NDArray[np.intp]:
    return np.array([KINDS.index(tap.kind) for tap in taps.taps], np.intp)


def _biases_of(taps: TapList) -> NDArray[np.bool_]:
    return np.array([is_bias(tap.index) for tap in taps.taps], bool)


def _is_often_zero(sizes: NDArray[np.float64]) -> bool:
    """Return whether zeros in a row are nothing new: for example, between the turns of two optimizers."""
    zeros = sizes[~np.isnan(sizes)] == 0
    edges = np.flatnonzero(np.diff(np.concatenate(([0], zeros, [0]))))
    runs = edges[1::2] - edges[::2]
    return len(runs) > 1 and bool(runs[-1] <= 2 * runs[:-1].max())


def _ranked(values: Logs, part: int) -> float:
    """Return the known value above one in `part` of them: the median for 2, the smallest but for a tenth for 10."""
    known = values[~np.isnan(values)]
    return float(np.sort(known)[len(known) // part]) if len(known) else float("nan")


def _onsets(window: MagnitudeWindow, places: NDArray[np.intp], usual: Logs, above: bool) -> list[int]:
    """Return, for each tap, the first column that is nearer to the present value than to the usual one."""
    before, now = usual[places].astype(float), window.now[places].astype(float)
    borders = np.where(np.isfinite(now), (before + now) / 2, before - 1)
    return window.beyond_from(places, borders, above)


def _large(window: MagnitudeWindow) -> Shift:
    rule, limits = RULES["large-update"], limits_of(window.store, "large-update")
    usual, now = window.past.usual, window.now
    absolute = now > np.log10(limits["share"])
    relative = (now > np.log10(limits["relative_share"])) & (now - usual > np.log10(limits["factor"]))
    # A bias often passes through zero, where any update is relatively large. So does a single number, such as a gate.
    places = np.flatnonzero((absolute | relative) & ~window.taps.fact(_biases_of))
    if len(places):
        counts = window.store.latest(stat="count", taps=window.taps.at(places.tolist())).values[:, 0]
        places = places[counts >= limits["least_values"]]
    return Shift("large-update", places, _onsets(window, places, usual, above=True), usual, lambda _: rule.severity)


def _stalled(window: MagnitudeWindow) -> Shift:
    rule, limits = RULES["stalled"], limits_of(window.store, "stalled")
    usual, now = window.past.usual, window.now.copy()
    now[window.is_nothing] = -np.inf
    places = np.flatnonzero((now < np.log10(limits["share"])) | (usual - now > np.log10(limits["factor"])))
    return Shift("stalled", places, _onsets(window, places, usual, above=False), usual, lambda _: rule.severity)


def _findings_of(window: MagnitudeWindow, shift: Shift, sentence: Sentence) -> list[Finding]:
    taps, numbers = window.taps.taps, window.taps.numbers.tolist()
    found = []
    onsets = list(zip(shift.onsets, shift.places.tolist(), strict=True))
    for group in groups_of(onsets, numbers, taps, _TOGETHER, lambda: window.feeding):
        place, since = group.place, window.first_step(group.column)
        usual, value = _power(shift.usual[place]), _now_of(window, place)
        text = sentence(shift.rule, taps[place].kind, value, usual)
        found.append(_finding(window, shift.rule, shift.severity(place), group, (value, usual), since, text))
    return found


def _finding(
    window: MagnitudeWindow,
    rule: RuleName,
    severity: Severity,
    group: Group,
    sizes: tuple[float, float],
    since: int,
    text: str | Since,
    until: int | None = None,
) -> Finding:
    place = group.place
    number, tap = int(window.taps.numbers[place]), window.taps.taps[place]
    about = (window.stat, *sizes, since, until, text, window.spark(place), group.downstream)
    steps = {column: window.first_step(column) for column in {column for column, _ in group.members}}
    members = tuple((number, steps[column]) for column, number in group.members)
    return Finding(rule, severity, number, tap, *about, members=members)


def _now_of(window: MagnitudeWindow, place: int) -> float:
    row = window.columns.size[-RECENT:, place]
    known = np.sort(row[np.isfinite(row)])
    return float(known[len(known) // 2]) if len(known) else float("nan")


def _power(value: float) -> float:
    return float(10.0 ** float(value))


def _size_sentence(rule: RuleName, kind: Kind, value: float, usual: float) -> Since:
    name = KIND_WORDS[kind]
    if rule == "exploding":
        return Since(f"the {name} has been {_times(value, usual)} as large as usual")
    if value == 0:
        return Since(f"the {name} has been zero")
    return Since(f"the {name} has been {_times(usual, value)} smaller than usual")


def _share_sentence(rule: RuleName, _kind: Kind, value: float, usual: float) -> Since:
    if rule == "stalled":
        return Since("the weight has not changed", f": its update is {value:.0e} of it" if value else "")
    return Since(f"the update has been {value:.2g} of the weight", f" (usual: {usual:.2g})")


def _times(one: float, two: float) -> str:
    ratio = one / two if two else float("inf")
    return f"{ratio:,.0f} times" if ratio < 1e6 else f"{ratio:.0e} times"


def _spikes(
    window: MagnitudeWindow, exploding: NDArray[np.intp], losses: Losses, reported: int | None
) -> list[Finding]:
    """Return single columns far beyond a tap's own spread."""
    limits = limits_of(window.store, "spike")
    usual, spread = window.past.usual, window.past.below
    far = np.maximum(np.log10(limits["factor"]), limits["spreads"] * np.maximum(spread, limits["least_spread"]))
    beyond = window.logs > (usual + far)[:, None]
    beyond[:, : window.column_of((window.steps.first or 0) + WARM_UP)] = False
    beyond[exploding] = False
    beyond[beyond.sum(axis=1) > limits["rare"]] = False
    _leave_out_slopes(beyond, window.logs, far / 2)
    if reported is not None:
        wanted = [
            reported < window.last_step(each) and window.first_step(each) <= window.settled
            for each in range(window.number)
        ]
        beyond[:, ~np.array(wanted)] = False
    columns, places = np.nonzero(beyond.T)
    if not len(columns):
        return []
    onsets = list(zip(columns.tolist(), places.tolist(), strict=True))
    numbers = window.taps.numbers.tolist()
    groups = groups_of(onsets, numbers, window.taps.taps, 0, lambda: window.feeding)
    return [_spike(window, group, losses) for group in groups]


def _leave_out_slopes(beyond: NDArray[np.bool_], logs: Logs, rise: Floats) -> None:
    """Leave out columns [tap, column] that values have reached by degrees: a spike rises by this much at once."""
    for place in np.flatnonzero(beyond.any(axis=1)):
        calm = np.flatnonzero(~beyond[place] & np.isfinite(logs[place]))
        columns = np.flatnonzero(beyond[place])
        before = np.searchsorted(calm, columns) - 1
        known = before >= 0
        slow = logs[place, columns[known]] - logs[place, calm[before[known]]] < rise[place]
        beyond[place, columns[known][slow]] = False


def _spike(window: MagnitudeWindow, group: Group, losses: Losses) -> Finding:
    place, column = group.place, group.column
    tap = window.taps.taps[place]
    bounds = window.first_step(column), window.last_step(column)
    series = window.store.series(int(window.taps.numbers[place]), window.stat, *bounds, WIDEST)
    step = int(series.first_step[np.nanargmax(np.abs(series.max))]) if np.isfinite(series.max).any() else bounds[0]
    value, usual = float(window.columns.size[column, place]), _power(window.past.usual[place])
    # Near the end of a training, a single hard sample stands out among tiny gradients. It does no harm.
    harmless = losses.jumped(step) is False
    severe = value > usual * limits_of(window.store, "spike")["warning_factor"] and not harmless
    message = f"the {KIND_WORDS[tap.kind]} was {_times(value, usual)} as large as usual at step {step}"
    return _finding(window, "spike", "warning" if severe else "info", group, (value, usual), step, message, step)


WIDEST: Final = 1000  # points of one column with one point per step


RULE: Final = "gradient-clipped-always"
_FEW: Final = 3  # captured steps that show whether gradients are clipped
_ALIKE: Final = 0.9  # share of the gradients of a step that must be clipped in the same way

Floats = NDArray[np.float64]


def find_clipped(store: Store, taps: TapList, gradients: TapList) -> list[Finding]:
    """Return a note if nearly every step clips the gradients, by what they were before and are after it.

    Clipping by norm multiplies several gradients by one number, and clipping by value gives several the same largest
    magnitude. A number that is the same in all steps, such as the share of a micro-batch, is no clipping.
    """
    limits = limits_of(store, RULE)
    begin = store.captured_step(int(limits["among"]) - 1)
    if len(gradients.taps) < 2 or begin is None:
        return []
    same = limits["same"]
    newest = store.rows(gradients.numbers, "ratio", store.captured_step(_FEW - 1)).mean
    if not (newest < 1 - same).any():  # most looks end here
        return []
    steps, factors, clipped = _clips_of(store, gradients, begin, same)
    if len(steps) < limits["captured_steps"] or clipped.mean() < limits["share"]:
        return []
    norms = store.rows(gradients.numbers, "norm", begin)
    after = norms.mean[np.isin(norms.first, steps)]
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.sqrt(np.nansum(np.where(factors > 0, after / factors, after) ** 2, axis=1))
    totals = np.sqrt(np.nansum(after**2, axis=1))
    shares = (totals / before)[clipped]
    if np.ptp(shares) <= same * shares.max():
        return []
    place = taps.fact(last_output)
    usual = float(np.median(totals))
    message = (
        f"clipping made the gradients smaller in {int(clipped.sum())} of the newest {len(steps)} captured steps: their "
        f"norm was {float(np.median(before)):.4g} before it and {usual:.4g} after it (medians)"
    )
    since = int(steps[np.flatnonzero(clipped)[0]])
    about = "norm", usual, float("nan"), since, None, message, tuple(totals[-SPARK:].tolist()), 0
    return [Finding(RULE, RULES[RULE].severity, int(taps.numbers[place]), taps.taps[place], *about, placed=False)]


def _clips_of(
    store: Store, gradients: TapList, first: int, same: float
) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """Return the steps in which it is known, each gradient's factor, and whether the step clipped them."""
    rows, low, high = (store.rows(gradients.numbers, stat, first) for stat in ("ratio", "min", "max"))
    known = (rows.first == rows.last) & (rows.nonfinite == 0).all(axis=1) & np.isfinite(rows.mean).any(axis=1)
    factors = rows.mean[known]
    if low.mean.shape != rows.mean.shape or high.mean.shape != rows.mean.shape:  # a frame arrived in between
        return rows.first[:0], factors[:0], np.zeros(0, bool)
    largest = np.fmax(np.abs(low.mean[known]), np.abs(high.mean[known]))
    clipped = [
        _are_alike(factor[factor < 1 - same], same) or _are_alike(size[factor < 1 - same], same)
        for factor, size in zip(factors, largest, strict=True)
    ]
    return rows.first[known], factors, np.array(clipped, bool)


def _are_alike(values: Floats, same: float) -> bool:
    """Return whether nearly each of these numbers is also that of another one."""
    if len(values) < 2:
        return False
    close = np.diff(values := np.sort(values)) <= same * values[1:]
    return bool((np.append(close, False) | np.append(False, close)).mean() >= _ALIKE)


# Tensors that are not finite: what the store's incidents, and its ledger of each tensor, say today.

MAX_PAST: Final = 10  # the newest past episodes to show
STAT: Final = "rms"

Spark = Callable[[int], tuple[float, ...]]  # the newest finite values of a tap, by its number


class _Record(NamedTuple):
    """The ledger's record of an incident's culprit."""

    first_step: int
    last_step: int
    streaks: int
    steps: int
    nan: int
    inf: int
    is_over: bool

    @classmethod
    def of(cls, known: NonfiniteTaps, number: int) -> _Record:
        place = int(np.searchsorted(known.numbers, number))
        return cls(*(getattr(known, name)[place].item() for name in cls._fields))


def find_nonfinite(store: Store, window_first: int, spark: Spark) -> list[Finding]:
    """Return one finding for each incident; of those with the same culprit, or an unknown one, for the newest one.

    An incident that was over before the window is a note: its step is known, but it doesn't affect the present.
    """
    incidents, masks = [incident for incident in store.incidents() if incident.rule == "nonfinite"], store.masks()
    past = [incident for incident in incidents if incident.is_over][-MAX_PAST:]
    known = store.nonfinite_taps()  # read last: frames may arrive meanwhile, and it must know all of the others
    found: dict[str, Finding] = {}
    for each in reversed([*past, *(incident for incident in incidents if not incident.is_over)]):
        number, is_captured = each.culprit.number, each.culprit_known and each.source == "capture"
        if each.key not in found:
            record = _Record.of(known, number) if is_captured else None
            found[each.key] = _nonfinite_finding(
                store, each, record, window_first, spark(number) if number >= 0 else ()
            )
    return [*found.values(), *_find_masks(store, masks, known, spark)]


def _find_masks(store: Store, masks: Mapping[int, int], known: NonfiniteTaps, spark: Spark) -> list[Finding]:
    """Return a note about infinities that do no harm: for the first tensor that has them."""
    if not masks:
        return []
    taps = store.taps().taps
    number, modules = min(masks), {taps[mask].module for mask in masks}
    first, record, others = taps[number], _Record.of(known, number), len(modules) - 1
    more = f"; the same in {counted(others, 'other module')}" if others else ""
    message = (
        f"harmless infinities in the {KIND_WORDS[first.kind]} since step {masks[number]:,}, like those of a mask: "
        f"in the first such step, all other captured values were finite{more}"
    )
    until = record.last_step if record.is_over else None
    about = STAT, float("inf"), float("nan"), masks[number], until, message, spark(number), others
    return [Finding("nonfinite", "info", number, first, *about)]


def _nonfinite_finding(
    store: Store, incident: Incident, record: _Record | None, window_first: int, spark: tuple[float, ...]
) -> Finding:
    until, culprit = incident.last_step if incident.is_over else None, incident.culprit
    skipped = incident.is_over and incident.skipped and culprit.tap.kind in GRADIENT_KINDS
    is_note = skipped or (incident.is_over and incident.last_step < window_first)
    severity: Severity = "info" if is_note else "warning" if incident.is_over else "error"
    infinite = isinf(incident.value) if record is None else _is_infinite(store, incident, record)
    return Finding(
        "nonfinite",
        severity,
        culprit.number,
        culprit.tap,
        STAT,
        float("inf") if infinite else float("nan"),
        float("nan"),
        incident.first_step,
        until,
        _verdict(incident) if record is None else _message(incident, record, infinite, skipped),
        spark,
        incident.modules,
        record.last_step if record is not None and record.is_over else None,
        incident.unseen,
        culprit_known=incident.culprit_known,
        incident=incident.id,
    )


def _verdict(incident: Incident) -> str:
    """Return what is known of an incident whose culprit wasn't captured in the first step."""
    words = incident.headline if isnan(incident.value) else f"{incident.headline[0].lower()}{incident.headline[1:]}"
    return f"{words}; finite again" if incident.is_over else words


def _is_infinite(store: Store, incident: Incident, record: _Record) -> bool:
    """Return whether the culprit had infinities and no NaN."""
    if not record.nan or not record.inf:
        return not record.nan
    seen = store.series(incident.culprit.number, "nan", incident.first_step, incident.last_step, 1)  # it had both
    return not (len(seen.max) and seen.max[0] > 0)


def _message(incident: Incident, record: _Record, infinite: bool, skipped: bool) -> str | Since:
    what = "an infinity" if infinite else "NaN" if isnan(incident.value) else "an infinity, then NaN"
    begin, name = incident.first_step, KIND_WORDS[incident.culprit.tap.kind]
    if incident.is_over:
        when = f"at step {begin}" if incident.last_step <= begin else f"between steps {begin} and {incident.last_step}"
        tail = "; the gradient scaler skipped the step" if skipped else "; finite again"
    elif record.is_over and record.first_step >= begin:
        last = record.last_step
        when = f"at step {begin}" if last <= begin else f"between steps {begin} and {last}"
        tail = "; finite again there, but not in the layers that followed"
    else:
        when = tail = ""
    often = f"non-finite in {record.steps:,} captured steps since step {record.first_step:,}"
    more = f"{tail}; {often}" if record.streaks > 1 else tail
    return f"{what} in the {name} {when}{more}" if when else Since(f"{what} in the {name}", more)


DRIFT: Final = "batch-norm-drift"
NORMALIZING: Final = ("BatchNorm", "SyncBatchNorm", "LazyBatchNorm")  # how the names of the classes begin
_TRAINED: Final = 8  # newest columns of training that show the usual value there


def find_drift(window: MagnitudeWindow) -> list[Finding]:
    """Return a finding for the first batch normalization whose output is of another size in evaluation."""
    taps = window.taps.taps
    evaluated = window.taps.fact(_evaluated)
    if not evaluated:
        return []  # most runs capture no evaluations
    types = window.store.module_types()
    pairs = [
        (place, evaluated[key])
        for place, tap in enumerate(taps)
        if tap.phase == "train"
        and tap.kind == "output"
        and (key := (tap.module, tap.index, tap.call)) in evaluated
        and types.get(tap.module, "").startswith(NORMALIZING)
    ]
    found = [each for pair in pairs if (each := _drift(window, *pair)) is not None]
    if not found:
        return []
    first, onset, ratio = min(found)
    return [_drifted(window, first, onset, ratio, found)]


def _evaluated(taps: TapList) -> dict[tuple[str, str, int], int]:
    """Return the places of outputs in evaluation."""
    return {
        (tap.module, tap.index, tap.call): place
        for place, tap in enumerate(taps.taps)
        if tap.phase == "eval" and tap.kind == "output"
    }


def _drift(window: MagnitudeWindow, trained: int, evaluated: int) -> tuple[int, int, float] | None:
    """Return the place, the first column, and the ratio, if it was far from one in each of the newest evaluations."""
    limits = limits_of(window.store, DRIFT)
    usual, now = window.logs[trained], window.logs[evaluated]
    columns = np.flatnonzero(~np.isnan(now))
    first = (window.steps.first or 0) + limits["settled"]
    columns = columns[[window.first_step(column) >= first for column in columns.tolist()]]
    known = np.flatnonzero(~np.isnan(usual))
    if len(columns) < limits["evaluations"] or not len(known):
        return None
    ratios = np.array([now[column] - np.median(usual[known[known <= column][-_TRAINED:]]) for column in columns])
    far = np.abs(ratios) >= np.log10(limits["factor"])
    newest = ratios[-int(limits["evaluations"]) :]
    if not far[-len(newest) :].all() or len(set(np.sign(newest))) > 1:
        return None
    begun = after_last(~far)
    if abs(ratios[-1]) < limits["closer"] * abs(ratios[begun]):  # the statistics are still on their way
        return None
    return evaluated, int(columns[begun]), float(10.0 ** ratios[-1])


def _drifted(
    window: MagnitudeWindow, place: int, column: int, ratio: float, found: list[tuple[int, int, float]]
) -> Finding:
    number, tap = int(window.taps.numbers[place]), window.taps.taps[place]
    size = float(window.columns.size[np.flatnonzero(~np.isnan(window.logs[place]))[-1], place])
    since = window.first_step(column)
    times = f"{ratio:.3g} times as large as" if ratio > 1 else f"{1 / ratio:.3g} times smaller than"
    text = Since(f"in evaluation, the activation has been {times} in training")
    members = tuple((int(window.taps.numbers[each]), window.first_step(onset)) for each, onset, _ in found)
    about = window.stat, size, size / ratio, since, None, text, window.spark(place), len(found) - 1
    return Finding(DRIFT, RULES[DRIFT].severity, number, tap, *about, members=members)
