"""Imported by Python itself before a script that `hookcore run` starts. Leaves the process as it would have been."""


def _start() -> None:
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    before = os.environ.pop("HOOKCORE_RUN_PYTHONPATH", None)
    until = os.environ.pop("HOOKCORE_RUN_UNTIL", "")
    if before is not None:
        # Child processes of the script don't run under hookcore.
        os.environ.pop("PYTHONPATH", None)
        if before:
            os.environ["PYTHONPATH"] = before[1:]
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    sys.modules.pop(__name__, None)
    if before is not None:
        from hookcore.commands.run import watch_when_torch_comes

        watch_when_torch_comes(until)
    # Import the sitecustomize that this file hides. If there is none, Python expects the resulting error.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


_start()
