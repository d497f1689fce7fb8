"""`doctor`: check what hookcore needs on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from .flags import Commands, add_command

SICK: Final = 1
EXAMPLES: Final = """
  hookcore doctor                                  check versions, device, compiler, port, token, folder
  hookcore doctor --model train:make_model         also show which modules of this model would be captured
  HOOKCORE_URL=https://box:8642 hookcore doctor    also check that this server answers and accepts the token
"""


def add(commands: Commands) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "Check what works on this machine and what doesn't: versions, devices, the compiler, the port, the token, and "
        "the dashboard's folder. The exit code is 1 if something is wrong.",
        EXAMPLES,
    )
    doctor.add_argument(
        "--model",
        default="",
        metavar="MODULE:CALLABLE",
        help="callable that returns a model, or a model and its inputs; shows which modules would be captured",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    doctor = import_module("hookcore.commands.doctor")  # imports torch, which no other command should wait for
    findings = doctor.examine(given.model, environment)
    print(doctor.as_text(findings))
    return SICK if any(each.level == "wrong" for each in findings) else 0
