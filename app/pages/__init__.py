"""The pages: complete HTML without scripts, rendered by Jinja; scripts make them live. No JSON here."""

from __future__ import annotations

from fastapi import APIRouter

from .. import assets
from . import compare, events, flow, help, histograms, hooks, layer, overview, runs, settings, tensors
from .frame import compile_templates
from .runs import summary_of

router = APIRouter(include_in_schema=False)
for page in (runs, overview, flow, layer, histograms, tensors, hooks, events, compare, settings, help):
    router.include_router(page.router)


__all__ = ["prepare", "router", "summary_of"]


def prepare() -> None:
    """Compile the templates and compress the files of all pages, so that the first readers don't wait for it."""
    compile_templates()
    assets.read_all()
