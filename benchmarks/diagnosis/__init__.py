"""Small trainings, healthy ones and ones with a planted fault, and what hookcore finds in them."""

from .case import Case, Outcome, diagnose, judge, problems_of
from .faulty import FAULTY
from .healthy import HEALTHY
from .nonfinite import NONFINITE
from .ranks import BAD, RANKED, judge_ranks
from .waiting import BUSY, WAITING, in_seconds

SICK = {**FAULTY, **NONFINITE}

__all__ = [
    "BAD",
    "BUSY",
    "FAULTY",
    "HEALTHY",
    "NONFINITE",
    "RANKED",
    "SICK",
    "WAITING",
    "Case",
    "Outcome",
    "diagnose",
    "in_seconds",
    "judge",
    "judge_ranks",
    "problems_of",
]
