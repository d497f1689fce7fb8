"""`doctor`: what hookcore needs here, and what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from .flags import Commands, add_command

SICK: Final = 1
EXAMPLES: Final = """
  hookcore doctor                                  versions, device, compiler, port, token, folder
  hookcore doctor --model train:make_model         and what of this model would be captured, and what not and why
  HOOKCORE_URL=https://box:8642 hookcore doctor    and whether this server answers and takes the token
"""


def add(commands: Commands) -> None:
    """The sub-command of this file."""
    doctor = add_command(
        commands,
        "doctor",
        "Say what works here and what does not. It looks at versions, devices, the compiler, the port, the token and "
        "the folder of the dashboard, and ends with 1 where something is wrong.",
        EXAMPLES,
    )
    doctor.add_argument(
        "--model",
        default="",
        metavar="MODULE:CALLABLE",
        help="makes a model, or a model and its inputs: what would be captured of it",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    doctor = import_module("hookcore.doctor")  # looks at torch, which no other command waits for
    findings = doctor.examine(given.model, environment)
    print(doctor.as_text(findings))
    return SICK if any(each.level == "wrong" for each in findings) else 0
