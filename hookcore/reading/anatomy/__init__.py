"""A model as nested boxes: their parts, the connections on each level, and repeats. Pure functions of records."""

from __future__ import annotations

from hookcore.reading.anatomy.boxes import Box, anatomy_of
