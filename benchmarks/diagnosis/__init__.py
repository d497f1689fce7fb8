"""Small trainings, healthy ones and ones with a planted fault, and what hookcore finds in them."""

from .case import Case, Outcome, diagnose, judge, problems_of
from .faulty import FAULTY
from .healthy import HEALTHY
from .nonfinite import NONFINITE

SICK = {**FAULTY, **NONFINITE}

__all__ = ["FAULTY", "HEALTHY", "NONFINITE", "SICK", "Case", "Outcome", "diagnose", "judge", "problems_of"]
