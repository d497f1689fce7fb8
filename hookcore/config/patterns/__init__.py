"""Selecting modules: the grammar of patterns, and the selection by `include` and `exclude`."""

from hookcore.config.patterns.grammar import STRUCTURE, Condition, Facts, literal, parse, parse_search
from hookcore.config.patterns.selection import Selection, select, select_among

__all__ = ["STRUCTURE", "Condition", "Facts", "Selection", "literal", "parse", "parse_search", "select", "select_among"]
