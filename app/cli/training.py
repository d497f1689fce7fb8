"""`run`, `demo`, `replay`, and `doctor`: a training of this machine. `look` and `import`: what others have written."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from hookcore.commands.run import UNTIL, become
from hookcore.config import SETTINGS, Settings, bytes_of
from hookcore.errors import ArgumentError
from hookcore.platform import give_way, limit_memory

from .flags import Commands, add_command, add_flags, add_watch_flags, watch_variables

RUN_EXAMPLES: Final = """
  hookcore run train.py --epochs 3                 runs `python train.py --epochs 3` and watches it
  hookcore run -m package.train --epochs 3         runs `python -m package.train --epochs 3` and watches it
  hookcore run --every 10 --kinds output,param_grad train.py
                                                   hookcore's flags come before the script
  hookcore run --until-incident train.py           ends with code 3 and a sentence after an incident
  HOOKCORE_URL=http://box:8642 hookcore run train.py
                                                   sends to another server
  torchrun --nproc-per-node 2 -m hookcore run train.py
                                                   watches each process; the ranks are one run
"""


def add_run(commands: Commands) -> None:
    run = add_command(
        commands,
        "run",
        "Run a training script and watch it, without changing it. Every model that it trains is found "
        "automatically. The script runs under plain Python, with its own arguments, exit code, and signals.",
        RUN_EXAMPLES,
    )
    run.usage = "hookcore run [flags] train.py [arguments]\n       hookcore run [flags] -m package [arguments]"
    add_watch_flags(run)
    run.add_argument(
        "--until-incident",
        action="store_true",
        help="end the script after the first incident of severity error, with exit code 3 and a sentence",
    )
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="...", help="module and its arguments")
    run.add_argument("script", nargs=argparse.REMAINDER, help="script and its arguments")
    advice = "flags come before the script, the script's arguments after it; `hookcore run --help` lists the flags"
    run.set_defaults(run=_run, advice=advice)


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    script = given.script if given.module is None else ["-m", *given.module]
    until = {UNTIL: "error"} if given.until_incident else {}
    become(script, watch_variables(given, environment) | until, environment)


MODELS: Final = ("cnn", "transformer")
TROUBLES: Final = ("nan", "vanishing", "exploding", "dead-relu", "spike")
DEMO_EXAMPLES: Final = """
  hookcore demo                                    a CNN learns to read digits, until Ctrl+C
  hookcore demo --model transformer                a transformer learns to read digits
  hookcore demo --trouble nan                      the training fails at step 100
  hookcore demo --trouble vanishing --at 300 --most-per-s 0
                                                   it fails later, and runs at full speed
"""


def add_demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "Train a small network and print the address of its dashboard. The network learns scikit-learn's handwritten "
        "digits, without a download, until Ctrl+C.",
        DEMO_EXAMPLES,
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


REPLAY_EXAMPLES: Final = """
  hookcore replay step.capsule                     find the operator and the line that made a NaN
  hookcore replay step.capsule --above 1e4         find the first one above a magnitude
  hookcore replay step.capsule --json              print JSON, for programs
"""


def add_replay(commands: Commands) -> None:
    replay = add_command(
        commands,
        "replay",
        "Run a saved training step again, and show the operator and the line that made a non-finite value. "
        "This runs code from its file: replay only those that you trust.",
        REPLAY_EXAMPLES,
    )
    replay.add_argument("capsule", help="file with the step; its name ends in .capsule")
    replay.add_argument("--above", type=float, default=None, metavar="X", help="also report magnitudes above X")
    replay.add_argument(
        "--memory",
        default="",
        metavar="SIZE",
        help="memory limit, such as 8GiB; also lowers the priority of the process",
    )
    replay.add_argument(
        "--definitions",
        action="store_true",
        help="if the model is defined in the main script, run only the script's imports and definitions",
    )
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(run=_replay)


def _replay(given: argparse.Namespace, _environment: Mapping[str, str]) -> str:
    if given.memory:
        _yield_to_others(given.memory)
    capsules = import_module("hookcore.capsules")  # imports torch, which no other command should wait for
    print(f"hookcore: {capsules.read_about(given.capsule)['warning']}", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):  # what the training's own code prints
        found = capsules.replay(given.capsule, given.above, definitions=given.definitions)
    return json.dumps(found.as_dict(), indent=2) if given.json else str(capsules.as_text(found))


def _yield_to_others(memory: str) -> None:
    try:
        limit = bytes_of(memory)
    except ValueError as error:
        raise ArgumentError(f"memory={memory!r} is invalid: use a size such as 8GiB. {error}") from None
    limit_memory(limit)
    give_way(2)  # just below the training, because a person waits for the answer


SICK: Final = 1
DOCTOR_EXAMPLES: Final = """
  hookcore doctor                                  check versions, device, compiler, port, token, folder
  hookcore doctor --model train:make_model         also show which modules of this model would be captured
  hookcore doctor --cost train:make_model          measure what each part of watching this model costs here
  HOOKCORE_URL=https://box:8642 hookcore doctor    also check that this server answers and accepts the token
"""


def add_doctor(commands: Commands) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "Check what works on this machine and what doesn't: versions, devices, the compiler, the port, the token, and "
        "the dashboard's folder. The exit code is 1 if something is wrong.",
        DOCTOR_EXAMPLES,
    )
    doctor.add_argument(
        "--model",
        default="",
        metavar="MODULE:CALLABLE",
        help="callable that returns a model, or a model and its inputs; shows which modules would be captured",
    )
    doctor.add_argument(
        "--cost",
        default="",
        metavar="MODULE:CALLABLE",
        help="callable that returns a model and its inputs; only measures, for half a minute, what watching adds",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    doctor = import_module("hookcore.commands.doctor")  # imports torch, which no other command should wait for
    if given.cost:
        print(import_module("hookcore.commands.doctor.training").measure_cost(given.cost))
        return 0
    findings = doctor.examine(given.model, environment)
    print(doctor.as_text(findings))
    return SICK if any(finding.level == "wrong" for finding in findings) else 0


OF_SIZES: Final = ("server", "keep", "group", "notes", "memory")
COORDCHECK_EXAMPLES: Final = """
  hookcore coordcheck train:make_model             widths 64, 128, 256, and 512
  hookcore coordcheck train:make_model --depths 2,4,8,16 --steps 3
                                                   depths instead
  hookcore coordcheck train:make_model --server none --keep runs --json
                                                   saves the runs in a folder, and prints JSON
"""


def add_coordcheck(commands: Commands) -> None:
    parser = add_command(
        commands,
        "coordcheck",
        "Say which layers keep a learning rate from transferring to larger models: train a model in several widths or "
        "depths, and fit how outputs and what training changes in them go with it. The exit code is 0 if all is flat, "
        "1 if a layer isn't, and 3 if that isn't known.",
        COORDCHECK_EXAMPLES,
    )
    _add_function(parser, "width= or depth=")
    _add_sizes(parser, [64, 128, 256, 512], "default: 64,128,256,512")
    parser.add_argument("--steps", type=_count, default=4, metavar="N", help="steps of each training (default: 4)")
    parser.set_defaults(run=_coordcheck)


def _coordcheck(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    group = _group(given, environment, "coordcheck")
    scaling = import_module("hookcore.commands.scaling")  # imports torch, which no other command should wait for
    found = scaling.check(given.function, *_sizes_in(given), max(1, given.steps), range(max(1, given.seeds)), group)
    print(json.dumps(found.as_dict, indent=2) if given.json else found.text)
    return int(scaling.CODES[found.verdict])


SWEEP_EXAMPLES: Final = """
  hookcore lr-sweep train:make_model --rates 1e-4..1
                                                   two rates of each power of ten
  hookcore lr-sweep train:make_model --rates 1e-3..1 --widths 64,128,256
                                                   also says whether the best rate transfers
  hookcore lr-sweep train:make_model --rates 1e-3..1 --depths 2,4,8
                                                   the same for depths
"""


def add_sweep(commands: Commands) -> None:
    parser = add_command(
        commands,
        "lr-sweep",
        "Find the best learning rate and the largest stable one, by short trainings; with several widths or depths, "
        "also whether the best one transfers. The exit code is 0 if the best rate is known and transfers, 1 if it "
        "doesn't transfer, and 3 if that isn't known.",
        SWEEP_EXAMPLES,
    )
    _add_function(parser, "lr= (and width= or depth=)")
    parser.add_argument(
        "--rates", type=_rates, required=True, metavar="A..B", help="a range, or rates such as 0.01,0.1"
    )
    _add_sizes(parser, [], "widths (default: one model)")
    parser.add_argument("--steps", type=_count, default=50, metavar="N", help="steps of each training (default: 50)")
    parser.set_defaults(run=_sweep)


def _sweep(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    group = _group(given, environment, "lr-sweep")
    scaling = import_module("hookcore.commands.scaling")
    found = scaling.sweep(
        given.function, given.rates, *_sizes_in(given), max(1, given.steps), range(max(1, given.seeds)), group
    )
    print(json.dumps(found.as_dict, indent=2) if given.json else found.text)
    return int(scaling.CODES[found.verdict])


def _rates(text: str) -> list[float]:
    try:
        ends = [float(each) for each in text.split(".." if ".." in text else ",")]
    except ValueError:
        ends = [0.0]
    if not all(0 < rate < math.inf for rate in ends) or (".." in text and not (len(ends) == 2 and ends[0] < ends[1])):
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: use a range such as 1e-4..1, or rates such as 0.01,0.1")
    if ".." not in text:
        return ends
    parts = max(2, round(2 * math.log10(ends[1] / ends[0])))
    return [ends[0] * (ends[1] / ends[0]) ** (part / parts) for part in range(parts + 1)]


def _add_sizes(parser: argparse.ArgumentParser, default: list[int], words: str) -> None:
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--widths", type=_sizes, default=default, metavar="N,N,N", help=words)
    sizes.add_argument("--depths", type=_sizes, metavar="N,N,N", help="compare depths instead of widths")


def _sizes_in(given: argparse.Namespace) -> tuple[str, list[int]]:
    return ("width", given.widths) if given.depths is None else ("depth", given.depths)


def _add_function(parser: argparse.ArgumentParser, takes: str) -> None:
    parser.add_argument(
        "function",
        metavar="MODULE:CALLABLE",
        help=f"callable that takes {takes}, and returns a model, its optimizer, and a batch for which the model "
        "returns the loss, or a function that returns the loss",
    )
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="trainings of each kind (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, [each for each in SETTINGS if each.name in OF_SIZES], prefix="watch_")


def _group(given: argparse.Namespace, environment: Mapping[str, str], command: str) -> str:
    """Set the variables of the runs, and return the name of their group."""
    os.environ.update(variables := watch_variables(given, environment))
    called = given.function.rpartition(":")[2]
    return {**environment, **variables}.get("HOOKCORE_GROUP") or f"{command}-{called}-{time.strftime('%m%d-%H%M%S')}"


def _sizes(text: str) -> list[int]:
    sizes = [int(each) if each.isascii() and each.isdigit() else 0 for each in text.split(",")]
    if 0 in sizes:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: use integers of 1 or more, such as 64,128,256,512")
    return sizes


OF_IMPORTS: Final = ("server", "keep", "name", "group", "tags", "notes", "memory")
LOOK_EXAMPLES: Final = """
  hookcore look model.safetensors                  its weights, as a run of one step on your dashboard
  hookcore look base.safetensors tuned.safetensors
                                                   which tensors differ, and by how much
  hookcore look checkpoint.pt                      a checkpoint of torch, read with weights_only
  hookcore look model-folder                       shards with an index, or a distributed checkpoint
  hookcore look model.safetensors --server none --keep runs
                                                   without a server, as a saved run in a folder
"""
IMPORT_EXAMPLES: Final = """
  hookcore import tensorboard runs                 each folder with event files becomes a run
  hookcore import wandb wandb/offline-run-1        a run of W&B on this disk; or a folder of them
  hookcore import trackio my-project               the runs of a project; or the path of its .db
  hookcore import tensorboard runs --server none --keep imported
                                                   without a server, as saved runs in a folder
"""
IMPORT_MEMORY: Final = "96MB"
TOOLS: Final = ("tensorboard", "wandb", "trackio")


def add_look(commands: Commands) -> None:
    look = add_command(
        commands,
        "look",
        "Show the weights in a file as a run of one step: types, norms, ranks, non-finite values, histograms. With two "
        "files, say which tensors differ, by how much, and which are equal. No code of a file is run.",
        LOOK_EXAMPLES,
    )
    look.add_argument("model", type=Path, help="file or folder with weights")
    look.add_argument("other", type=Path, nargs="?", help="file or folder to compare it with")
    add_flags(look, [each for each in SETTINGS if each.name in OF_IMPORTS], prefix="watch_")
    look.set_defaults(run=_look)


def _look(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    looking = import_module("hookcore.commands.intake.look")
    paths = [given.model] if given.other is None else [given.model, given.other]
    return str(looking.look(paths, _import_settings(given, environment)))


def add_import(commands: Commands) -> None:
    summary = (
        "Import logs of TensorBoard, W&B, or Trackio as runs: scalars, histograms, images, texts, tables, and the "
        "configuration. None of these tools has to be installed. What can't be read is counted and named."
    )
    importing = add_command(commands, "import", summary, IMPORT_EXAMPLES)
    importing.add_argument("tool", choices=TOOLS, help="the tool that has written the logs")
    importing.add_argument("source", help="folder or file with the logs; of Trackio, the name of a project or its .db")
    add_flags(importing, [each for each in SETTINGS if each.name in OF_IMPORTS], prefix="watch_")
    importing.set_defaults(run=_import)


def _import(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    settings = _import_settings(given, environment)
    logs = import_module("hookcore.commands.intake.logs")
    for line in logs.import_logs(given.tool, given.source, settings, environment):
        print(line, flush=True)
    return 0


def _import_settings(given: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings of an imported run: without a name and with a small store, unless they are given."""
    variables = {"HOOKCORE_MEMORY": IMPORT_MEMORY, **environment, **watch_variables(given, environment)}
    settings = Settings.of(variables)
    return settings if "HOOKCORE_NAME" in variables else replace(settings, name="")
