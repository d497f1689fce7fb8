"""`demo`: a small network that trains on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from .flags import Commands, add_command, add_watch_flags, watch_variables

MODELS: Final = ("cnn", "transformer")
TROUBLES: Final = ("nan", "vanishing", "exploding", "dead-relu", "spike")
EXAMPLES: Final = """
  hookcore demo                                    a CNN learns to read digits, until Ctrl+C
  hookcore demo --model transformer                a transformer learns to read digits
  hookcore demo --trouble nan                      the training fails at step 100
  hookcore demo --trouble vanishing --at 300 --most-per-s 0
                                                   it fails later, and runs at full speed
"""


def add(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "Train a small network and print the address of its dashboard. The network learns scikit-learn's handwritten "
        "digits, without a download, until Ctrl+C.",
        EXAMPLES,
    )
    demo.usage = "hookcore demo [flags]"
    demo.add_argument("--model", choices=MODELS, default=MODELS[0], help=f"network to train (default: {MODELS[0]})")
    demo.add_argument("--trouble", choices=TROUBLES, default="", help="problem to simulate (default: none)")
    demo.add_argument(
        "--at", type=_count, default=100, metavar="STEP", help="step at which the problem begins (default: 100)"
    )
    demo.add_argument(
        "--steps", type=_count, default=0, metavar="N", help="stop after this number of steps (default: 0, never)"
    )
    demo.add_argument(
        "--most-per-s",
        type=_rate,
        default=25.0,
        metavar="N",
        help="maximum steps per second, 0 for no limit (default: 25)",
    )
    add_watch_flags(demo)
    demo.set_defaults(run=_demo)


def _demo(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    os.environ.update(watch_variables(given, environment))
    try:
        demo = import_module("hookcore.commands.demo")  # imports torch, which no other command should wait for
        demo.train(demo.Demo(given.model, given.trouble, given.at, given.steps, given.most_per_s))
    except KeyboardInterrupt:
        pass  # before the training began, or at its end
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: use an integer of 0 or more")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: use a number of 0 or more")
    return rate
