"""The dimensions of a tensor that have the names of its batch's tokens and samples."""

from __future__ import annotations

from dataclasses import dataclass

from hookcore.records import Names, Snapshot
from hookcore.records.vocabulary import counted

from .attention import looks_like_attention


@dataclass(frozen=True, slots=True)
class Named:
    """The names that fit a tensor, and why others don't."""

    axes: tuple[int, ...] = ()  # the dimensions that are positions
    tokens: tuple[tuple[str, ...], ...] = ()  # of each sample; one row of all of them if `shared`
    shared: bool = False
    labels: tuple[str, ...] = ()
    why: str = ""

    def tokens_of(self, sample: int) -> tuple[str, ...]:
        """Return the names of the positions of a sample, if there are any."""
        row = 0 if self.shared else sample
        return self.tokens[row] if row < len(self.tokens) else ()


def named(snapshot: Snapshot) -> Named:
    """Return what fits. A dimension has names only if its size is their number, and no other one may be meant."""
    names, shape = snapshot.names, snapshot.values.shape
    if names is None:
        return Named()
    if snapshot.truncated or len(shape) < 2:
        return Named(why="Names are shown only for whole tensors with a sample dimension.")
    axes, problems = _axes(names, snapshot)
    labels = names.labels
    if labels and len(labels) != shape[0]:
        problems.append(f"{counted(len(labels), 'label')} for {counted(shape[0], 'sample')}: give one for each sample.")
        labels = ()
    return Named(axes, names.tokens if axes else (), names.shared, labels, " ".join(problems))


def _axes(names: Names, snapshot: Snapshot) -> tuple[tuple[int, ...], list[str]]:
    shape = snapshot.values.shape
    sizes = {len(row) for row in names.tokens}
    if not sizes:
        return (), []
    if len(sizes) > 1:
        return (), ["The samples have different numbers of tokens: name the padding, too."]
    if not names.shared and len(names.tokens) > shape[0]:
        return (), [f"Tokens of {counted(len(names.tokens), 'sample')} were given for {shape[0]}."]
    (size,) = sizes
    fits = tuple(axis for axis in range(1, len(shape)) if shape[axis] == size)
    last = (len(shape) - 2, len(shape) - 1)
    if fits[-2:] == last and looks_like_attention(snapshot):
        return last, []
    if len(fits) == 1:
        return fits, []
    return (), [
        f"{size} tokens were given, and several dimensions have this size."
        if fits
        else f"{size} tokens were given, but no dimension has this size."
    ]
