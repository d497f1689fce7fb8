"""A replay as text."""

from __future__ import annotations

from collections.abc import Iterator

from hookcore.capsules.operators import Suspect
from hookcore.capsules.replay import Replay
from hookcore.reading.answers import TensorFacts


def as_text(found: Replay) -> str:
    """Return the sentences and tables of a replay."""
    return "\n".join(_lines(found))


def _lines(found: Replay) -> Iterator[str]:
    about = found.about
    yield f"step {about['step']} of {about['model']}: {about['reason']}"
    yield found.sentence
    if found.culprit is not None:
        yield from _culprit(found.culprit)
    if found.bad_results:
        more = f", and {len(found.bad_results) - 3} more" if len(found.bad_results) > 3 else ""
        kind = "non-finite" if found.above is None else f"non-finite or too large (above {found.above:.3g})"
        yield f"{kind} results: {', '.join(found.bad_results[:3])}{more}"
    for other in found.others:
        where = "" if other.line is None else f", {other.line.file}:{other.line.line}"
        yield f"another origin: {other.operator} ({other.origin}, {other.phase or 'before the step'}{where})"
    if found.error:
        yield f"the step raised {found.error}"
    yield f"{found.operators} operators; " + (
        "activations match the training, bit for bit" if found.exact else "may not match the training:"
    )
    yield from (f"  {difference}" for difference in found.differences)
    yield from about.get("notes", ())
    if steps := about.get("frames"):
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        yield f"earlier steps in the capsule, for hookcore.capsules.read_frames: {len(steps)} ({span})"


def _culprit(culprit: Suspect) -> Iterator[str]:
    if culprit.phase:
        of_node = f", in {culprit.node}, which belongs to the forward call below" if culprit.node else ""
        yield f"  operator {culprit.number}, {culprit.phase}{of_node}"
    if culprit.line is not None:
        line = culprit.line
        yield f"  {line.file}, line {line.line}, in {line.function}"
        for number, source in enumerate(line.source, line.first):
            yield f"  {'>' if number == line.line else ' '} {number:4} {source}"
        yield from (f"  called from {each.file}, line {each.line}" for each in reversed(culprit.stack[:-1]))
    for facts in (*culprit.inputs, culprit.output):
        if facts is not None:
            yield f"  {_facts(facts)}"
    if culprit.elements:
        many = "1 element" if culprit.bad == 1 else f"{culprit.bad:,} elements"
        yield f"  {many}, first {', '.join(map(str, culprit.elements[:3]))}"


def _facts(facts: TensorFacts) -> str:
    shape = f"{facts.name}: {facts.dtype} {list(facts.shape)}, strides {list(facts.strides)}, {facts.device}"
    finite = "" if facts.min is None else f", min {facts.min:.6g}, max {facts.max:.6g}, mean {facts.mean:.6g}"
    values = f", values {', '.join(facts.values[:3])}" if facts.values else ""
    return f"{shape}, {facts.nan} NaN, {facts.inf} infinite{finite}{values}"
