"""The findings of a run, and its key figures. Pure: a store in, records out; no web, no plots.

A layer is compared with its own past, because late layers are larger than early ones in every healthy network, and
many gradients are small for a whole run. A problem that exists from the first step has no healthy past, so rules
about the whole stack (`depth`), about zeros, and about the loss detect it. The scope says how much was examined.
"""

from __future__ import annotations

from .cache import FindingsCache
from .choices import FOLLOWED, Choices, changed, changes_in, chosen_in, read_choices, started_with
from .finding import Finding
from .follower import follow
from .keyfigures import KeyFigures, Reading, key_figures_of
from .ranking import Diagnosis, examine, findings_of
from .reach import Reach, reach_of, without_data
from .rule import Rule
from .rules import RULES, limits_of
from .scope import Scope
from .thresholds import THRESHOLDS
