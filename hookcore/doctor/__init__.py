"""`hookcore doctor`: looks at everything that hookcore needs here, and says what is missing and what to do about it.

It starts nothing that stays and changes nothing. `machine` needs no torch; `training` is asked where torch is there.
"""

from hookcore.doctor.examine import examine
from hookcore.doctor.findings import Finding, as_text

__all__ = ["Finding", "as_text", "examine"]
