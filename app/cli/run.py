"""`run`: somebody's own training script, with the dashboard."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from hookcore.run import become

from .flags import Commands, add_command, add_watch_flags, watch_variables

EXAMPLES: Final = """
  hookcore run train.py --epochs 3                 as `python train.py --epochs 3`, and watched
  hookcore run -m package.train --epochs 3         as `python -m package.train --epochs 3`
  hookcore run --every 10 --kinds output,param_grad train.py
                                                   flags of ours stand before the script
  HOOKCORE_URL=http://box:8642 hookcore run train.py
                                                   sends to a server elsewhere
  torchrun --nproc-per-node 2 --no-python hookcore run train.py
                                                   every process is a run of its own
"""


def add(commands: Commands) -> None:
    """The sub-command of this file."""
    run = add_command(
        commands,
        "run",
        "Run a training script with the dashboard, and change nothing in it. Every model that it trains is found by "
        "itself; the script runs under plain Python, with its own arguments, exit code and signals.",
        EXAMPLES,
    )
    run.usage = "hookcore run [flags] train.py [arguments]\n       hookcore run [flags] -m package [arguments]"
    add_watch_flags(run)
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="...", help="a module and its arguments")
    run.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    told = "flags stand before the script, its own arguments behind it; `hookcore run --help` lists the flags"
    run.set_defaults(run=_run, advice=told)


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    script = given.script if given.module is None else ["-m", *given.module]
    become(script, watch_variables(given, environment), environment)
