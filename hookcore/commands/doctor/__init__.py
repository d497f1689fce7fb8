"""`hookcore doctor`: checks everything that hookcore needs on this machine, and says how to fix what is wrong.

It starts no lasting process and changes nothing. `machine` needs no torch; `training` runs only if torch is installed.
"""

from hookcore.commands.doctor.machine import Check, as_text, examine

__all__ = ["Check", "as_text", "examine"]
