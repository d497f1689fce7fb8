"""`hookcore run`: runs an unmodified script under plain Python, with one file that is imported first.

Nothing here runs a script: this process becomes `python train.py`. Arguments, signals, exit code, tracebacks,
`__main__`, and `sys.path` are those of plain Python, because it is plain Python.
"""

from hookcore.commands.run.become import become, command_of

__all__ = ["become", "command_of"]
