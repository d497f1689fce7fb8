"""The runs of a server: in memory and on disk, and the limits of both."""

from __future__ import annotations

from .changes import Changes
from .gone import Gone, why_gone
from .joint import JointRun
from .run import AwayError, Run
from .runs import Runs
from .state import STATES

__all__ = ["STATES", "AwayError", "Changes", "Gone", "JointRun", "Run", "Runs", "why_gone"]
