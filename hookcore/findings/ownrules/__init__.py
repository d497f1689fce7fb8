"""Rules of the user: functions that check every frame. Their findings are events, which become incidents."""

from __future__ import annotations

from .registry import OwnRule, own_rule_of, own_rules, rule, rules_in
from .running import OwnRules
from .views import FrameView, Problem, TensorView

__all__ = ["FrameView", "OwnRule", "OwnRules", "Problem", "TensorView", "own_rule_of", "own_rules", "rule", "rules_in"]
