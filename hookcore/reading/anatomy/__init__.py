"""A model as nested boxes: their parts, the connections on each level, and repeats. Pure functions of records."""

from __future__ import annotations

from hookcore.reading.anatomy.boxes import Anatomy, Box, anatomy_of

__all__ = ["Anatomy", "Box", "anatomy_of"]
