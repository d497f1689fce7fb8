"""The runs of a server: in memory and on disk, and the limits of both."""

from __future__ import annotations

from .disk import Gone, why_gone
from .joint import Joint, joint_in, ranks_in
from .parts import Changes
from .run import STATES, AwayError, Run
from .runs import Runs

__all__ = ["STATES", "AwayError", "Changes", "Gone", "Joint", "Run", "Runs", "joint_in", "ranks_in", "why_gone"]
