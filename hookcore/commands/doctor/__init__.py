"""`hookcore doctor`: checks everything that hookcore needs on this machine, and says how to fix what is wrong.

It starts no lasting process and changes nothing. `machine` needs no torch; `training` runs only if torch is installed.
"""

from hookcore.commands.doctor.machine import TESTED, Check, as_text, examine, examine_machine, examine_tested

__all__ = ["TESTED", "Check", "as_text", "examine", "examine_machine", "examine_tested"]
