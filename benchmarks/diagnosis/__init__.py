"""Small trainings, healthy ones and ones with a planted fault, and what hookcore finds in them."""

from .case import Case, Outcome, diagnose, judge, problems_of, train
from .faulty import FAULTY
from .healthy import HEALTHY as USUAL
from .nonfinite import NONFINITE as PLANTED
from .ranks import BAD, RANKED, judge_ranks
from .unlike import HEALTHY_UNLIKE, UNLIKE
from .waiting import BUSY, WAITING, in_seconds

HEALTHY = {**USUAL, **HEALTHY_UNLIKE}
NONFINITE = {**PLANTED, **UNLIKE}
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
    "train",
]
