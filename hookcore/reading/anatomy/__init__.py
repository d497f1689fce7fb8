"""A model as boxes: what contains what, what feeds what on each level, and which parts repeat. Pure, over records."""

from __future__ import annotations

from hookcore.reading.anatomy.boxes import Anatomy, Box, anatomy_of

__all__ = ["Anatomy", "Box", "anatomy_of"]
