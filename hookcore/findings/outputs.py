"""Rules about the outputs of a layer: all zeros, the same, at their bounds, unlike their statistics, or collapsed."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding, RuleName, Since, after_last, listed
from hookcore.findings.losses import Losses
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.records import PROBE, Severity, Tap, adds_up
from hookcore.records.vocabulary import ATTENTION, EXPERT_OWNED, KIND_WORDS, OUTLIERS, functions_of
from hookcore.store import Store, TapList
from hookcore.store.rows import Rows

# Outputs and gradients that are all zeros, judged by the steps in which they were captured.

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Zeros:
    """Which taps were zero in each of their newest captured steps, and which were captured too rarely to judge."""

    places: NDArray[np.intp]
    unknown: NDArray[np.intp]
    judged: NDArray[np.intp]


def find_dead(store: Store, outputs: TapList) -> list[Finding]:
    """Return a finding for every dead output: a note, if it was always zero, and is beside a living first result."""
    if not _any_zero(store, outputs, limits_of(store, "dead")["zero_fraction"]):
        return []  # most looks end here
    zeros, found = zeros_of(store, outputs, "dead"), list[Finding]()
    alive = (outputs.taps[place] for place in np.setdiff1d(zeros.judged, zeros.places).tolist())
    living = {(tap.module, tap.phase) for tap in alive if tap.index.partition(".")[0] == "0"}
    for each in _since(store, outputs, zeros.places):
        tap, about = outputs.taps[each[0]], _all_zeros(outputs, "dead", each, 0)
        if tap.index.partition(".")[0] not in ("", "0") and (tap.module, tap.phase) in living:
            whole = store.rows(outputs.numbers[[each[0]]], "zero_fraction", store.steps().first or 0)
            if (whole.low[whole.present > 0] >= each[-1]).all():  # as T5's bias of positions in a cross-attention
                about = replace(about, severity="info").adding("; its module's first result isn't, so it may be meant")
        found.append(about)
    return found


def find_no_gradient(store: Store, gradients: TapList) -> list[Finding]:
    """Return one finding if the gradients of most layers' parameters are zero, so that these layers no longer learn."""
    if not _any_zero(store, gradients):
        return []  # most looks end here
    zeros = zeros_of(store, gradients, "no-gradient")
    layers = {gradients.taps[place].module for place in zeros.judged.tolist()}
    alive = {gradients.taps[place].module for place in np.setdiff1d(zeros.judged, zeros.places).tolist()}
    still = layers - alive
    if len(layers) < 2 or len(still) < limits_of(store, "no-gradient")["share"] * len(layers):
        return []
    places = np.array([place for place in zeros.places.tolist() if gradients.taps[place].module in still], np.intp)
    since = _since(store, gradients, places)
    begun = sorted(since, key=lambda each: each[2])[0]
    found = _all_zeros(gradients, "no-gradient", begun, len(still) - 1)
    text = Since(f"the gradient has been exactly zero in {len(still)} of {len(layers)} layers", older=begun[3])
    members = tuple((int(gradients.numbers[each[0]]), each[2]) for each in since)
    return [replace(found, text=text, members=members)]


def find_zero_inputs(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding if the weights of some layers get no gradient although the layers' outputs get one.

    The first of these layers in the order of execution is named. Call it only if no output is dead, which explains it.
    """
    trained = taps.fact(_trained_weights)
    if not _any_zero(store, trained):
        return []  # most looks end here
    zeros = zeros_of(store, trained, "all-zero")
    if len(zeros.places) == len(zeros.judged):
        return []  # there is no gradient at all: another rule says so
    still = {trained.taps[place].module: place for place in zeros.places.tolist()}
    fed = taps.at(_places(taps, lambda tap: tap.kind == "output_grad" and tap.module in still and not tap.call))
    judged = zeros_of(store, fed, "all-zero")
    alive = {fed.taps[place].module for place in np.setdiff1d(judged.judged, judged.places).tolist()}
    turn = {tap.module: place for place, tap in reversed([*enumerate(taps.taps)]) if tap.kind == "output"}
    chosen = sorted((module for module in still if module in alive), key=lambda module: turn.get(module, -1))
    since = _since(store, trained, np.array([still[module] for module in chosen], np.intp))
    if not since:
        return []
    found = _all_zeros(trained, "all-zero", since[0], len(since) - 1)
    first = min((turn.get(tap.module, -1) for tap in trained.taps), default=-1)
    from_start = found.since_step <= (store.steps().first or 0)
    severity = "info" if from_start and turn.get(chosen[0], -1) > first else found.severity
    found = replace(found, text=zeros_since(since[0], "its input has been all zeros"))
    members = tuple((int(trained.numbers[each[0]]), each[2]) for each in since)
    return [replace(found, severity=severity, members=members).adding(": its weight gets no gradient")]


def _any_zero(store: Store, taps: TapList, share: float = 1.0) -> bool:
    """Return whether any of these taps was zero in the newest step in which it was captured."""
    return len(taps.taps) > 0 and bool((store.latest(stat="zero_fraction", taps=taps).values >= share).any())


def _trained_weights(taps: TapList) -> TapList:
    return taps.at(_places(taps, lambda tap: tap.kind == "param_grad" and tap.index == "weight"))


def _places(taps: TapList, fits: Callable[[Tap], bool]) -> list[int]:
    return [place for place, tap in enumerate(taps.taps) if fits(tap)]


def zeros_of(store: Store, taps: TapList, rule: RuleName) -> Zeros:
    """Judge taps by the newest captured steps; a tap must be in enough of them."""
    limits = limits_of(store, rule)
    first = store.captured_step(int(limits["among"]) - 1)
    if first is None or not len(taps.taps):
        none = np.empty(0, np.intp)
        return Zeros(none, np.arange(len(taps.taps)), none)
    rows = store.rows(taps.numbers, "zero_fraction", first)
    is_zero = rows.low >= limits.get("zero_fraction", 1.0)  # a non-finite tensor is not dead
    zero, enough = judge_newest(rows.present, ~is_zero, limits["captured_steps"])
    return Zeros(np.flatnonzero(enough & zero), np.flatnonzero(~enough & zero), np.flatnonzero(enough))


def judge_newest(present: NDArray[Any], healthy: Flags, steps: float) -> tuple[Flags, Flags]:
    """Return which taps were healthy in none of their own newest steps, and which have that many steps.

    `present` is the number of steps with a value in each row [row, tap].
    """
    seen = present.astype(np.int64)
    later = seen[::-1].cumsum(axis=0)[::-1] - seen  # number of steps after each row
    alive: Flags = np.asarray(((seen > 0) & healthy & (later < steps)).any(axis=0), np.bool_)
    enough: Flags = seen.sum(axis=0) >= steps
    return ~alive, enough


# a tap's index, its rows, the step since which it is zero, whether that may be earlier, and the share that counts
Zero = tuple[int, Rows, int, bool, float]


def _since(store: Store, taps: TapList, places: NDArray[np.intp]) -> list[Zero]:
    """Search further back for the steps in which the zeros began."""
    if not len(places):
        return []
    begin = window_first(store)
    is_cut = begin > (store.steps().first or 0)
    rows = store.rows(taps.numbers[places], "zero_fraction", begin)
    zero = limits_of(store, "dead")["zero_fraction"]
    found = []
    for lane, place in enumerate(places.tolist()):
        mine = Rows.join([rows.of_lanes(np.array([lane]))])
        begun = after_last(~(mine.low[:, 0] >= zero))
        since = int(mine.first[min(begun, len(mine.first) - 1)])
        found.append((place, mine, since, is_cut and not begun, zero))
    return found


def _all_zeros(taps: TapList, rule: RuleName, about: Zero, more: int) -> Finding:
    place, rows, since, _, zero = about
    low = rows.low[:, 0]
    alive = np.flatnonzero(~(low >= zero))
    number, tap = int(taps.numbers[place]), taps.taps[place]
    text = zeros_since(about, f"every value of the {KIND_WORDS[tap.kind]} has been zero")
    usual = float(low[alive[-1]]) if len(alive) else float("nan")
    spark = tuple(low[np.isfinite(low)][-SPARK:].tolist())
    values = "zero_fraction", float(low[-1]), usual, since
    return Finding(rule, RULES[rule].severity, number, tap, *values, None, text, spark, more)


def zeros_since(about: Zero, words: str) -> Since:
    """Return words about zeros with the step since which they are there, and how many captured steps show it."""
    _, rows, since, older, _ = about
    return Since(words, f" ({int(rows.present[rows.first >= since, 0].sum())} captured)", older)


SATURATED: Final = "saturated-activation"
SATURATING: Final = ("Sigmoid", "Tanh")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Slopes:
    """The mean slope of some activations [row, tap], as a share of the largest one; NaN where it isn't known."""

    first: NDArray[np.int64]
    rms: Floats
    values: Floats

    @classmethod
    def read(cls, store: Store, taps: TapList, is_tanh: NDArray[np.bool_], first: int, last: int | None) -> _Slopes:
        """Compute it from the outputs: the slope of tanh is 1 - y**2, that of a sigmoid is y - y**2."""
        rms, mean = (store.rows(taps.numbers, stat, first, last) for stat in ("rms", "mean"))
        if len(rms.first) != len(mean.first):  # a frame arrived in between
            mean = rms
        slopes = np.where(is_tanh, 1 - rms.mean**2, 4 * (mean.mean - rms.mean**2))
        slopes[rms.nonfinite > 0] = np.nan
        return cls(rms.first, rms.mean, slopes)


def find_saturated(store: Store, outputs: TapList, losses: Losses) -> list[Finding]:
    """Return a finding for every saturated activation. One that became so while the loss fell is a note."""
    types = store.module_types()
    taps = outputs.at([p for p, tap in enumerate(outputs.taps) if types.get(tap.module, "") in SATURATING])
    limits = limits_of(store, SATURATED)
    newest = store.captured_step(int(limits["among"]) - 1)
    if not len(taps.taps) or newest is None:
        return []
    is_tanh = np.array([types[tap.module] == "Tanh" for tap in taps.taps])
    recent = _Slopes.read(store, taps, is_tanh, newest, None).values
    flat, enough = judge_newest(~np.isnan(recent), recent >= limits["slope"], limits["captured_steps"])
    places = np.flatnonzero(flat & enough)
    if not len(places):
        return []
    chosen, last = taps.at(places.tolist()), max(outputs.numbers[_trained(outputs)].tolist(), default=-1)
    begin = window_first(store)
    window = _Slopes.read(store, chosen, is_tanh[places], begin, None)
    start = store.steps().first or 0
    early = _Slopes.read(store, chosen, is_tanh[places], start, start + WARM_UP - 1).values
    learns = losses.fell
    found = []
    for lane in range(len(places)):
        from_start = bool((np.isnan(early[:, lane]) | (early[:, lane] < limits["slope"])).all())
        is_last = int(chosen.numbers[lane]) == last
        harmless = learns if from_start and is_last else not from_start and learns is not False
        severity: Severity = "info" if harmless or (learns is None and is_last) else RULES[SATURATED].severity
        found.append(_saturated(chosen, lane, window, limits["slope"], severity, begin > start))
    return found


def _trained(outputs: TapList) -> list[int]:
    """Return the places of outputs of modules, without that of the root, which repeats another one."""
    return [place for place, tap in enumerate(outputs.taps) if tap.phase == "train" and tap.module]


def _saturated(
    taps: TapList, lane: int, window: _Slopes, steep_from: float, severity: Severity, is_cut: bool
) -> Finding:
    slopes = window.values[:, lane]
    begun = after_last(slopes >= steep_from)
    since = int(window.first[min(begun, len(window.first) - 1)])
    rms = window.rms[:, lane]
    known = np.flatnonzero(~np.isnan(slopes))
    value, usual = float(rms[known[-1]]), float(rms[begun - 1]) if begun else float("nan")
    slope = slopes[known[-1]]
    words = f"on average, {slope:.2g} of the gradient passes: the activation has been at its bounds"
    text = Since(words, older=is_cut and not begun)
    about = "rms", value, usual, since, None, text, tuple(rms[known][-SPARK:].tolist()), 0
    return Finding(SATURATED, severity, int(taps.numbers[lane]), taps.taps[lane], *about)


NO_VARIANCE: Final = "tensor-variance"

Steps = NDArray[np.int64]


def find_variance(store: Store, taps: TapList, outputs: TapList) -> list[Finding]:
    """Return a finding for the first output without variance, in the order of execution."""
    limits = limits_of(store, NO_VARIANCE)
    if not len(outputs.taps):
        return []
    std, rms = (store.latest(stat=stat, taps=outputs) for stat in ("std", "rms"))
    if len(std.numbers) != len(rms.numbers):  # a frame arrived in between
        return []
    numbers = rms.numbers[((std.values <= limits["spread"] * rms.values) & (rms.values > 0))[:, 0]]
    if not len(numbers):
        return []  # most looks end here
    judged = outputs.at(np.flatnonzero(np.isin(outputs.numbers, numbers)).tolist())
    counts = store.latest(stat="count", taps=judged)
    judged = judged.at(np.flatnonzero(counts.values[:, 0] >= limits["least_values"]).tolist())
    if not len(judged.taps):
        return []
    first = store.captured_step(int(limits["among"]) - 1)
    spreads = _spreads(store, judged, first)[1]
    flat, enough = judge_newest(~np.isnan(spreads), spreads > limits["spread"], limits["captured_steps"])
    start = store.steps().first or 0
    early = _spreads(store, judged, start, start + WARM_UP - 1)[1]
    # One of several results may be meant to be the same, such as the only weight of each token's only expert.
    weighted = {tap.module for tap in taps.taps if tap.kind == "param_grad" and tap.index == "weight"}
    single = np.array([tap.module in weighted and not tap.index for tap in judged.taps], bool)
    varied = (early > limits["varied"]).any(axis=0) | single
    places = np.flatnonzero(flat & enough & varied)
    return [_without_variance(store, judged, places)] if len(places) else []


def _spreads(store: Store, taps: TapList, first: int | None, last: int | None = None) -> tuple[Steps, Floats]:
    """Return steps, and the standard deviation as a share of the root mean square; NaN where it isn't known."""
    std, rms = (store.rows(taps.numbers, stat, first, last) for stat in ("std", "rms"))
    if len(std.first) != len(rms.first):  # a frame arrived in between
        return std.first[:0], np.empty((0, len(taps.taps)))
    with np.errstate(divide="ignore", invalid="ignore"):
        spreads = std.high / rms.high
    spreads[(rms.nonfinite > 0) | ~(rms.high > 0)] = np.nan
    return std.first, spreads


def _without_variance(store: Store, taps: TapList, places: NDArray[np.intp]) -> Finding:
    begin = window_first(store)
    chosen = taps.at(places.tolist())
    steps, spreads = _spreads(store, chosen, begin)
    since = []
    for lane in range(len(places)):
        begun = after_last(spreads[:, lane] > limits_of(store, NO_VARIANCE)["spread"])
        since.append(int(steps[min(begun, len(steps) - 1)]))
    lane = min(range(len(places)), key=lambda each: (since[each], chosen.numbers[each]))
    means = store.rows(chosen.numbers[[lane]], "mean", begin).mean[:, 0]
    known = means[np.isfinite(means)]
    older = begin > (store.steps().first or 0) and since[lane] <= begin
    text = Since("every value of the activation has been the same number", f": {known[-1]:.4g} in the newest", older)
    members = tuple(zip(chosen.numbers.tolist(), since, strict=True))
    more = len({tap.module for tap in chosen.taps} - {chosen.taps[lane].module})
    about = "mean", float(known[-1]), float("nan"), since[lane], None, text, tuple(known[-SPARK:].tolist()), more
    return Finding(
        NO_VARIANCE, RULES[NO_VARIANCE].severity, int(chosen.numbers[lane]), chosen.taps[lane], *about, members=members
    )


# Rules about the results of probes with functions of hookcore: dead channels, and rank and attention that collapse.

_FIRST: Final = 3  # results that show the usual value


@dataclass(frozen=True, slots=True)
class _Judged:
    """Which of a tap's results are bad, and how serious that is."""

    bad: NDArray[np.bool_]
    usual: float
    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class _Judge:
    """The rule for one function, and the stat of its results that it goes by."""

    rule: RuleName
    stat: str
    judge: Callable[[Floats, Losses], _Judged]
    where: str = ""  # what the number is called that says where the value was found


def _dead_channels(shares: Floats, losses: Losses) -> _Judged:
    rule, limits = RULES["dead-channels"], limits_of(losses.store, "dead-channels")
    bad = shares >= limits["share"]
    harmless = bool(bad.all()) and losses.fell is True
    message = f"{shares[-1]:.0%} of the channels of the activation have been zero everywhere"
    usual = float("nan") if bad.all() else float(shares[~bad][-1])
    return _Judged(bad, usual, "info" if harmless else rule.severity, message)


def _rank(ranks: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["rank-collapse"], _usual(ranks)
    limits = limits_of(losses.store, "rank-collapse")
    bad = (ranks <= limits["share"] * usual) & (usual >= limits["least_rank"])
    harmless = losses.fell is True and ranks[-1] > limits["single"]
    message = f"the activation has varied in only {ranks[-1]:.2g} of its {usual:.2g} initial directions"
    return _Judged(bad, usual, "info" if harmless else rule.severity, message)


def _entropy(largest: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["attention-entropy-collapse"], _usual(largest)
    limits = limits_of(losses.store, "attention-entropy-collapse")
    bad = (largest <= limits["entropy"]) & (usual >= limits["least_entropy"])
    message = f"every head has looked at little more than one token (entropy {largest[-1]:.2g}, at first {usual:.2g})"
    return _Judged(bad, usual, "info" if losses.fell else rule.severity, message)


def _logits(largest: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["attention-logit-growth"], _usual(largest)
    limits = limits_of(losses.store, "attention-logit-growth")
    bad = (largest >= limits["logit"]) & (largest >= limits["factor"] * usual)
    message = f"the largest logit of attention has been {largest[-1]:.3g} (at first {usual:.3g})"
    return _Judged(bad, usual, "info" if losses.fell else rule.severity, message)


def _first_token(largest: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["attention-first-token"], _usual(largest)
    limits = limits_of(losses.store, "attention-first-token")
    bad = (largest >= limits["weight"]) & (usual < limits["initial"])
    message = f"a head has looked at the first token only (weight {largest[-1]:.2g}, at first {usual:.2g})"
    return _Judged(bad, usual, rule.severity, message)


def _dead_heads(smallest: Floats, losses: Losses) -> _Judged:
    rule, limits = RULES["dead-heads"], limits_of(losses.store, "dead-heads")
    bad = smallest <= limits["share"]
    message = f"the output of a head has been {smallest[-1]:.2g} times that of the usual head"
    usual = float("nan") if bad.all() else float(smallest[~bad][-1])
    return _Judged(bad, usual, "info" if losses.fell else rule.severity, message)


def _outliers(ratios: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["outlier-channel"], _usual(ratios)
    factor = limits_of(losses.store, "outlier-channel")["factor"]
    message = f"a channel of the activation has been {ratios[-1]:,.0f} times the median channel (at first {usual:,.3g})"
    severity: Severity = "info" if losses.fell or usual >= factor else rule.severity
    return _Judged(ratios >= factor, usual, severity, message)


def _usual(values: Floats) -> float:
    return float(np.median(values[:_FIRST]))


_COLLAPSE: Final = _Judge("attention-entropy-collapse", "max", _entropy)
# By the function, and by the name of the number if it computes several.
_JUDGES: Final = {
    "hookcore.probes.dead_channels": _Judge("dead-channels", "mean", _dead_channels),
    "hookcore.probes.effective_rank": _Judge("rank-collapse", "mean", _rank),
    "hookcore.probes.attention_entropy": _COLLAPSE,
    f"{ATTENTION} entropy": _COLLAPSE,
    f"{ATTENTION} largest_logit": _Judge("attention-logit-growth", "max", _logits),
    f"{ATTENTION} first_token": _Judge("attention-first-token", "max", _first_token),
    f"{ATTENTION} output": _Judge("dead-heads", "min", _dead_heads),
    f"{OUTLIERS} ratio": _Judge("outlier-channel", "mean", _outliers, where="channel"),
}


_FUNCTIONS: Final = frozenset(name.partition(" ")[0] for name in _JUDGES)
FUNCTIONS: Final[dict[RuleName, str]] = {judge.rule: name.partition(" ")[0] for name, judge in _JUDGES.items()}


def find_probed(store: Store, taps: TapList, losses: Losses) -> list[Finding]:
    """Return at most one finding of each rule, for the tap where the problem began first."""
    mine = places_by_rule(store, taps)
    judges = {judge.rule: judge for judge in _JUDGES.values() if judge.rule in mine}
    found = [(each, one) for rule, each in judges.items() for one in _find(store, taps.at(mine[rule]), each, losses)]
    return [one.adding(_where(store, taps, one.tap, each.where)) if each.where else one for each, one in found]


def _where(store: Store, taps: TapList, found: Tap, name: str) -> str:
    """Return words about where the value of a number is, which another number of the same function says."""
    beside = {replace(found, index=found.index.replace(f" {last}", f" {name}")) for last in found.index.split(" ")[1:]}
    place = next((place for place, tap in enumerate(taps.taps) if tap in beside), None)
    newest = np.empty((0, 1)) if place is None else store.latest(stat="mean", taps=taps.at([place])).values
    return f": {name} {newest[0, 0]:.0f}" if np.isfinite(newest).any() else ""


def places_by_rule(store: Store, taps: TapList) -> dict[RuleName, list[int]]:
    """Return the places of the probes that each rule judges."""
    known = {name: text for name, text in functions_of(store.labels()).items() if text in _FUNCTIONS}
    found = dict[RuleName, list[int]]()
    for place, tap in enumerate(taps.taps):
        judge = _judge_of(tap.index, known) if tap.kind == PROBE and tap.phase == "train" else None
        if judge is not None:
            found.setdefault(judge.rule, []).append(place)
    return found


def _judge_of(index: str, known: dict[str, str]) -> _Judge | None:
    """Return what judges a number of a probe of outputs; others have the kind of their tensor behind the name."""
    if index in known:
        return _JUDGES.get(known[index])
    name, _, last = index.rpartition(" ")
    if last[:1].isdigit():  # the place of one of several outputs, or calls of attention
        return _judge_of(name, known)
    return _JUDGES.get(f"{known.get(name)} {last}")


def _find(store: Store, taps: TapList, judge: _Judge, losses: Losses) -> list[Finding]:
    rows = store.rows(taps.numbers, judge.stat)
    found: list[Finding] = []
    for lane, (number, tap) in enumerate(zip(taps.numbers.tolist(), taps.taps, strict=True)):
        known = np.flatnonzero(np.isfinite(rows.mean[:, lane]) & (rows.nonfinite[:, lane] == 0))
        values, steps = rows.mean[known, lane], rows.first[known]
        results = int(limits_of(store, judge.rule)["results"])
        if len(values) < results:
            continue
        judged = judge.judge(values, losses)
        if not judged.bad[-results:].all():
            continue
        since = int(steps[after_last(~judged.bad)])
        text, spark = Since(judged.message), tuple(values[-SPARK:].tolist())
        about = judge.stat, float(values[-1]), judged.usual, since, None, text, spark, 0
        found.append(Finding(judge.rule, judged.severity, number, tap, *about, members=((number, since),)))
    return [_joined(found)] if found else []


def _joined(found: list[Finding]) -> Finding:
    """Return the finding that began first, with the others as its members."""
    first = min(found, key=lambda each: (each.severity == "info", each.since_step, each.number))
    others = {each.module for each in found} - {first.module}
    members = tuple(member for each in found for member in each.members)
    return replace(first, downstream=len(others), members=members)


# Rules about the choices of routers in mixtures of experts, summed over the newest measurements, and over ranks.

_UNEVEN: Final = "uneven-expert-ranks"


def find_routing(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding for the first router whose experts died, that collapsed, or that fills one rank."""
    dead, collapsed, uneven = (list[Finding]() for _ in range(3))
    for place in taps.fact(_routers):
        number, tap = int(taps.numbers[place]), taps.taps[place]
        steps, counts = store.choices(tap)
        if found := _collapsed(store, number, tap, steps, counts):
            collapsed.append(found)
            continue
        if found := _dead_experts(store, number, tap, steps, counts):
            dead.append(found)
        uneven += _uneven(store, number, tap, steps, counts)
    return [_joined(each) for each in (dead, collapsed, uneven) if each]


def _routers(taps: TapList) -> list[int]:
    return _places(taps, adds_up)


def _dead_experts(store: Store, number: int, tap: Tap, steps: Steps, counts: Floats) -> Finding | None:
    limits = limits_of(store, "dead-expert")
    sums = counts[:, ::-1].sum(axis=0).cumsum() / max(1, len(counts))  # an even share, of more and more measurements
    needed = max(int(limits["measured"]), int(np.searchsorted(sums, limits["even"])) + 1)
    if counts.shape[1] < needed:
        return None
    newest, even = counts[:, -needed:], sums[needed - 1]
    dead = np.flatnonzero(newest.sum(axis=1) <= limits["share"] * even)
    if not len(dead):
        return None
    is_alive = counts[dead] > limits["share"] * counts.sum(axis=0) / len(counts)
    begun = [after_last(alive) for alive in is_alive]
    shares = _shares(counts)[dead[int(np.argmin(begun))]]
    since = int(steps[min(min(begun), len(steps) - 1)])
    which = f"{'experts' if len(dead) > 1 else 'expert'} {listed(dead.tolist())} of {len(counts)}"
    text = Since(f"{which} {_has(dead)} received only {newest[dead].sum() / newest.sum():.2g} of all choices")
    if not newest[dead].any():
        text = Since(f"no token has chosen {which}")
    usual = float(np.median(shares[: min(begun)])) if min(begun) else float("nan")
    about = "min", float(shares[-1]), usual, since, None, text, tuple(shares[-SPARK:].tolist()), 0
    rule = RULES["dead-expert"]
    return Finding("dead-expert", rule.severity, number, tap, *about, members=((number, since),))


def _collapsed(store: Store, number: int, tap: Tap, steps: Steps, counts: Floats) -> Finding | None:
    limits = limits_of(store, "router-collapse")
    measured, most = int(limits["measured"]), max(1, int(limits["share"] * len(counts)))
    if counts.shape[1] < measured or len(counts) < 2:
        return None
    shares = _shares(counts)
    is_bad = np.sort(shares, axis=0)[-most:].sum(axis=0) >= limits["choices"]
    if not is_bad[-measured:].all():
        return None
    start = after_last(~is_bad)
    since, largest = int(steps[start]), shares.max(axis=0)
    chosen = sorted(np.argsort(shares[:, -1])[-most:].tolist())
    share = counts[chosen, -measured:].sum() / counts[:, -measured:].sum()
    which = f"{'experts' if most > 1 else 'expert'} {listed(chosen)} of {len(counts)}"
    text = Since(f"{which} {_has(chosen)} received {share:.0%} of all choices")
    usual = float(np.median(largest[:start])) if start else float("nan")
    about = "max", float(largest[-1]), usual, since, None, text, tuple(largest[-SPARK:].tolist()), 0
    rule = RULES["router-collapse"]
    return Finding("router-collapse", rule.severity, number, tap, *about, members=((number, since),))


def _uneven(store: Store, number: int, tap: Tap, steps: Steps, counts: Floats) -> list[Finding]:
    """Judge the choices by ranks, if these have all experts, each one once."""
    limits, owners = limits_of(store, "uneven-expert-ranks"), _owners(store, tap)
    measured, every = int(limits["measured"]), sorted(expert for each in owners for expert in each)
    if counts.shape[1] < measured or len(owners) < 2 or every != list(range(len(counts))):
        return []
    times = len(owners) * np.array([_shares(counts)[list(each)].sum(axis=0) for each in owners])
    most = int(times[:, -measured:].mean(axis=1).argmax())
    is_bad = times[most] >= limits["factor"]
    if not is_bad[-measured:].all():
        return []
    start = after_last(~is_bad)
    experts, ranks = list(owners)[most], list(owners.values())[most]
    which = f"{'ranks' if len(ranks) > 1 else 'rank'} {listed(ranks)}, experts {experts.start} to {experts.stop - 1}, "
    mean = times[most, -measured:].mean()
    text = Since(f"{which}{_has(ranks)} received {mean:.2f} times an even share of the choices")
    usual = float(np.median(times[most, :start])) if start else float("nan")
    since = int(steps[start])
    about = "max", float(times[most, -1]), usual, since, None, text, tuple(times[most, -SPARK:].tolist()), 0
    return [Finding(_UNEVEN, RULES[_UNEVEN].severity, number, tap, *about, members=((number, since),))]


def _owners(store: Store, tap: Tap) -> dict[range, list[int]]:
    """Return the ranks that have each part of a router's experts; nothing if one doesn't say so."""
    own, found = replace(tap, index=EXPERT_OWNED), dict[range, list[int]]()
    for rank in store.ranks() if store.of_ranks else ():
        taps = rank.store.taps()
        places = [place for place, each in enumerate(taps.taps) if each == own]
        ends = [rank.store.latest(stat=stat, taps=taps.at(places)).values for stat in ("min", "max")]
        if any(not each.size for each in ends):
            return {}
        found.setdefault(range(int(ends[0][0, 0]), int(ends[1][0, 0]) + 1), []).append(rank.rank)
    return found


def _shares(counts: Floats) -> Floats:
    shares: Floats = counts / np.maximum(counts.sum(axis=0), 1)
    return shares


def _has(experts: Sized) -> str:
    return "has" if len(experts) == 1 else "have"
