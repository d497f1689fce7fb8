"""The command `hookcore`: its help and error messages. One file per group of sub-commands. It imports no torch."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

import hookcore
from hookcore.config import did_you_mean, unknown_variables
from hookcore.errors import HookcoreError, explained

from . import asking, servers, training

__all__ = ["main", "make_parser"]

OTHER_NAMES: Final = {"--url": "--server"}  # HOOKCORE_URL is also called HOOKCORE_SERVER
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
WRONG: Final = 2
INTERRUPTED: Final = 130
UNREAD: Final = 141  # the exit code that a shell reports for a command whose pipe was closed
# Each function adds its sub-commands to the parser, in the order of the help.
FAMILIES: Final = (
    training.add_demo,
    training.add_run,
    servers.add_servers,
    servers.add_dashboards,
    asking.add_questions,
    servers.add_mcp,
    servers.add_skills,
    asking.add_check,
    asking.add_report,
    training.add_look,
    training.add_import,
    training.add_replay,
    training.add_doctor,
    training.add_coordcheck,
    training.add_sweep,
)
EXAMPLES: Final = """examples:
  hookcore demo                                    train a small network and watch it
  hookcore demo --model transformer --trouble nan  train one that fails
  hookcore run train.py --epochs 3                 watch your own script, unchanged
  hookcore status                                  show where your dashboard is
  hookcore stop                                    stop it
  hookcore open runs/x.hookcore                    show a saved run
  hookcore why                                     say why the newest run went wrong
  hookcore report                                  write the newest run as one HTML file
  hookcore check runs/x.hookcore --fail-on error   fail if something went wrong in a run
  hookcore serve --host 0.0.0.0                    run a server for other machines too
  HOOKCORE_URL=http://box:8642 python train.py     send a training to it

`hookcore COMMAND --help` describes each command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, or 2 with a sentence that says what to change."""
    parser = make_parser()
    _require_command(parser, sys.argv[1:] if arguments is None else arguments)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        hint = _flag_instead_of(unknown[0], given.command)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}.{hint} {given.advice[0].upper()}{given.advice[1:]}")
    if not given.watches:  # a training says it itself
        sys.stderr.writelines(f"hookcore: {variable}\n" for variable in unknown_variables())
    try:
        with explained():
            answer = given.run(given, os.environ)
        if isinstance(answer, int):
            return answer
        if answer:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
    except HookcoreError as error:
        sys.stderr.write(f"hookcore: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe. Discard what would still be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return 0


def _require_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with the nearest command if the given one is unknown."""
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        hint = did_you_mean(arguments[0], commands)
        parser.error(f"{arguments[0]!r} is not a command.{hint} The commands are {', '.join(commands)}.")


def _flag_instead_of(given: str, command: argparse.ArgumentParser) -> str:
    """Return which of a command's flags is probably meant, as a sentence with a leading space, or nothing."""
    flag, flags = given.partition("=")[0], set(_FLAG.findall(command.format_help()))
    meant = OTHER_NAMES.get(flag)
    return f" Did you mean {meant!r}?" if meant in flags else did_you_mean(flag, flags)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="hookcore",
        description="Record and show the activations and gradients of PyTorch trainings, live.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hookcore {hookcore.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in FAMILIES:
        add(commands)
    return parser
