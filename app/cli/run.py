"""`run`: watch a training script without changing it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from hookcore.commands.run import become

from .flags import Commands, add_command, add_watch_flags, watch_variables

EXAMPLES: Final = """
  hookcore run train.py --epochs 3                 runs `python train.py --epochs 3` and watches it
  hookcore run -m package.train --epochs 3         runs `python -m package.train --epochs 3` and watches it
  hookcore run --every 10 --kinds output,param_grad train.py
                                                   hookcore's flags come before the script
  HOOKCORE_URL=http://box:8642 hookcore run train.py
                                                   sends to another server
  torchrun --nproc-per-node 2 -m hookcore run train.py
                                                   watches each process; the ranks are one run
"""


def add(commands: Commands) -> None:
    run = add_command(
        commands,
        "run",
        "Run a training script and watch it, without changing it. Every model that it trains is found "
        "automatically. The script runs under plain Python, with its own arguments, exit code, and signals.",
        EXAMPLES,
    )
    run.usage = "hookcore run [flags] train.py [arguments]\n       hookcore run [flags] -m package [arguments]"
    add_watch_flags(run)
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="...", help="module and its arguments")
    run.add_argument("script", nargs=argparse.REMAINDER, help="script and its arguments")
    advice = "flags come before the script, the script's arguments after it; `hookcore run --help` lists the flags"
    run.set_defaults(run=_run, advice=advice)


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    script = given.script if given.module is None else ["-m", *given.module]
    become(script, watch_variables(given, environment), environment)
