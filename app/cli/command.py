"""The command itself: its help, which family each sub-command is of, and how errors are told."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import hookcore
from hookcore.errors import HookcoreError

from . import dashboards, demo, doctor, report, run, servers

WRONG: Final = 2
INTERRUPTED: Final = 130
UNREAD: Final = 141  # as a shell says of a command whose pipe was closed
# Each adds its sub-commands to the parser, in the order of the help.
FAMILIES: Final = (demo.add, run.add, servers.add, dashboards.add, report.add, doctor.add)
EXAMPLES: Final = """examples:
  hookcore demo                                    train a small network and watch it
  hookcore demo --model transformer --trouble nan  one that goes wrong
  hookcore run train.py --epochs 3                 your own script, unchanged
  hookcore status                                  where the dashboard of this user is
  hookcore stop                                    end it
  hookcore open runs/2026-05-01                    show a run that was kept
  hookcore report                                  the newest run as one HTML file
  hookcore serve --host 0.0.0.0                    a server for other machines too
  HOOKCORE_URL=http://box:8642 python train.py     a training that sends to it

`hookcore COMMAND --help` says more about each.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code: its own, or 2 with a sentence about what to change."""
    parser = make_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}: {given.advice}")
    try:
        told = given.run(given, os.environ)
        if isinstance(told, int):
            return told
        if told:
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
    except HookcoreError as error:
        sys.stderr.write(f"hookcore: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read, such as `head`, has seen enough. What is still to be written at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return 0


def make_parser() -> argparse.ArgumentParser:
    """All commands, with their flags and help."""
    parser = argparse.ArgumentParser(
        prog="hookcore",
        description="Shows PyTorch training runs from inside, live.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hookcore {hookcore.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in FAMILIES:
        add(commands)
    return parser
