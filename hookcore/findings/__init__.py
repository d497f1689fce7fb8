"""The findings of a run, and its key figures. Pure: a store in, records out; no web, no plots.

A layer is compared with its own past, because late layers are larger than early ones in every healthy network, and
many gradients are small for a whole run. A problem that exists from the first step has no healthy past, so rules
about the whole stack (`depth`), about zeros, and about the loss detect it. The scope says how much was examined.
"""

from __future__ import annotations

from hookcore.findings.advice import SENTENCES
from hookcore.findings.finding import Rule, RuleName
from hookcore.findings.follower import (
    FOLLOWED,
    Choices,
    aliases_of,
    changed,
    changes_in,
    chosen_in,
    read_choices,
    started_with,
)
from hookcore.findings.keyfigures import Course
from hookcore.findings.ranking import FindingsCache
from hookcore.findings.rules import THRESHOLDS
from hookcore.findings.scope import ScopeOfRule, reach_of, without_data

from .finding import Finding
from .follower import follow
from .keyfigures import KeyFigures, Reading, key_figures_of
from .ranking import Diagnosis, examine, examine_with, findings_of
from .rules import RULES, limits_of, rule_about
from .scope import Scope, Unjudged

__all__ = [
    "FOLLOWED",
    "RULES",
    "SENTENCES",
    "THRESHOLDS",
    "Choices",
    "Course",
    "Diagnosis",
    "Finding",
    "FindingsCache",
    "KeyFigures",
    "Reading",
    "Rule",
    "RuleName",
    "Scope",
    "ScopeOfRule",
    "Unjudged",
    "aliases_of",
    "changed",
    "changes_in",
    "chosen_in",
    "examine",
    "examine_with",
    "findings_of",
    "follow",
    "key_figures_of",
    "limits_of",
    "reach_of",
    "read_choices",
    "rule_about",
    "started_with",
    "without_data",
]
