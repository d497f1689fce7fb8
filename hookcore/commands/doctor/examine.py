"""The order of the checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

from hookcore.commands.doctor import machine
from hookcore.commands.doctor.findings import Finding


def examine(model: str = "", environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Run all checks; `model` names a callable as `module:callable` whose model is checked too."""
    findings = machine.examine(environment)
    try:
        training = import_module("hookcore.commands.doctor.training")
    except (ImportError, OSError) as error:
        words = f"cannot be imported ({error}): this machine can serve and show runs, but not train"
        return [*findings, Finding("wrong" if model else "note", "torch", words)]
    findings += training.examine()
    return findings + training.examine_model(model) if model else findings
