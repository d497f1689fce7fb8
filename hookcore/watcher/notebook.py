"""The display of a watcher in a notebook cell: the live page in a frame, and a picture that stays in the notebook."""

from __future__ import annotations

import base64
import contextlib
import os
from dataclasses import dataclass
from html import escape
from typing import Final

from hookcore.delivery.delivery import Delivery
from hookcore.errors import HookcoreError
from hookcore.reading import Client, Reader, StoreReader
from hookcore.reading.answers import Heatmap
from hookcore.reading.pictures import address_of, image_of, map_of
from hookcore.records import ROOT, Kind
from hookcore.records.vocabulary import KIND_TITLES, counted, is_loss, loss_rank

COLUMNS: Final = 300
ROWS: Final = 150
CELL_PX: Final = (640, 6)  # the picture's width, and the height of a row
HEIGHT_PX: Final = 600  # of the live page
ASK_S: Final = 2.0
MAX_TAPS: Final = 1000  # steps in which to count non-finite modules
RECENT_STEPS: Final = 500  # steps in which to look for the loss
_KINDS: Final[tuple[Kind, ...]] = ("output", "output_grad")
_LEGEND: Final = "bright: large, magenta: NaN, orange: infinite, gray: not captured"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run; an empty map has no rows."""

    figures: tuple[str, ...] = ()
    newest: int | None = None
    maps: tuple[tuple[str, Heatmap], ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """One run in a cell."""

    name: str
    url: str | None
    may_frame: bool
    facts: Figures

    def html(self) -> str:
        """Render key figures, the live page if it may be framed, and the picture."""
        link = f'<a href="{escape(self.url)}" target="_blank" rel="noopener">open page</a>' if self.url else ""
        head = " · ".join([f"<b>{escape(self.name)}</b>", *map(escape, self.facts.figures), *filter(None, [link])])
        return f"<div><p>{head}</p>{self._frame()}{self._pictures()}</div>"

    def _frame(self) -> str:
        if self.url is None or not self.may_frame:
            return ""
        return (
            f'<iframe src="{escape(self.url)}" title="hookcore: {escape(self.name)}" width="100%" '
            f'height="{HEIGHT_PX}" style="border: 1px solid #8886; border-radius: 6px"></iframe>'
        )

    def _pictures(self) -> str:
        shown = "".join(_figure(title, found) for title, found in self.facts.maps)
        if not shown:
            return ""
        opened = "" if self._frame() else " open"
        return f"<details{opened}><summary>State at step {self.facts.newest}</summary>{shown}</details>"

    def bundle(self, text: str) -> dict[str, str]:
        """Return the representations by media type, for Jupyter."""
        bundle = {"text/plain": text, "text/html": self.html()}
        if self.facts.maps:
            bundle["image/png"] = base64.b64encode(_png(self.facts.maps[0][1])).decode()
        return bundle


def _figure(title: str, found: Heatmap) -> str:
    first, last = found.taps[0].module, found.taps[-1].module
    caption = (
        f"{title.capitalize()}: root mean square of each layer, from {first or ROOT} (top) to {last or ROOT} (bottom), "
        f"steps {int(found.first_step[0])} to {int(found.last_step[-1])}; {_LEGEND}"
    )
    width, row = CELL_PX
    return (
        f'<figure style="margin: 8px 0"><img src="{address_of(_png(found))}" alt="{escape(caption)}" style="width: '
        f'{width}px; max-width: 100%; height: {max(40, row * len(found.taps))}px; image-rendering: pixelated">'
        f'<figcaption style="font-size: 12px; max-width: {width}px">{escape(caption)}.</figcaption></figure>'
    )


def _png(found: Heatmap) -> bytes:
    return image_of(map_of(found))


def card_of(delivery: Delivery) -> Card:
    """Return the current card of a run. If the server doesn't answer, only the link is shown."""
    facts = Figures()
    with contextlib.suppress(HookcoreError, OSError), contextlib.ExitStack() as stack:
        if delivery.store is not None:
            facts = facts_of(StoreReader(delivery.store, delivery.run.id))
        elif delivery.address is not None:
            address, run = delivery.address, delivery.run.id
            client = Client(address.url, address.token or None, timeout_s=ASK_S, run=run)
            facts = facts_of(stack.enter_context(client))
    # By default, this user's own dashboard lets pages on this machine frame it; other servers don't.
    ancestors = os.environ.get("HOOKCORE_FRAME_ANCESTORS", "")
    may_frame = delivery.server in ("auto", "thread") and ancestors.strip() != "none"
    return Card(delivery.run.name, delivery.url, may_frame, facts)


def facts_of(reader: Reader) -> Figures:
    newest = reader.steps().newest
    if newest is None:
        return Figures(("no steps yet",))
    figures = [f"step {newest}"]
    loss = min(filter(is_loss, reader.scalars().names), key=loss_rank, default="")
    if loss and len(losses := reader.scalars(loss, max(0, newest - RECENT_STEPS))[loss].mean):
        figures.append(f"{loss} {losses[-1]:.4g}")
    worst = reader.latest(stat="nonfinite", sort="nonfinite", limit=MAX_TAPS).taps
    if ill := [tap.module for tap in worst if tap.values[0] > 0]:
        at_least = "at least " if len(ill) == MAX_TAPS else ""
        figures.append(f"{at_least}{counted(len(set(ill)), 'module')} with NaN or infinities")
    found = ((KIND_TITLES[kind], reader.heatmap(kind, "rms", columns=COLUMNS, rows=ROWS)) for kind in _KINDS)
    return Figures(tuple(figures), newest, tuple(each for each in found if each[1].rows))
