"""What readers noted at steps of a run. Kept with the run, and shown on its timeline and in its charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hookcore.errors import ArgumentError

from .run import Run

MAX_ANNOTATED: Final = 200  # steps of a run
MAX_TEXT: Final = 500


def annotate(run: Run, step: int, text: str) -> None:
    """Annotate a step; an earlier annotation is replaced. Raises ArgumentError if there is no room."""
    with run.lock:
        kept = run.edits.annotations
        if step not in kept and len(kept) >= MAX_ANNOTATED:
            raise ArgumentError(f"this run has {MAX_ANNOTATED} annotated steps already: remove an annotation")
        run.edits.annotations = dict(sorted({**kept, step: text}.items()))
    run.edited()


def remove_annotation(run: Run, step: int) -> bool:
    """Remove the annotation of a step. Return whether there was one."""
    with run.lock:
        found = step in run.edits.annotations
        run.edits.annotations = {each: text for each, text in run.edits.annotations.items() if each != step}
    if found:
        run.edited()
    return found


def annotations_in(said: object) -> dict[int, str]:
    """Return annotations from a JSON file, whose keys are words, without what isn't one."""
    if not isinstance(said, Mapping):
        return {}
    found = {int(step): text[:MAX_TEXT] for step, text in said.items() if _is_step(step) and isinstance(text, str)}
    return dict(sorted(found.items())[:MAX_ANNOTATED])


def _is_step(word: object) -> bool:
    return isinstance(word, str) and word.isascii() and word.isdigit() and len(word) < 16
