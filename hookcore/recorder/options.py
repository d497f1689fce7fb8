"""The options that a script has read from its command line, for `hookcore run`: those of argparse, and of Hydra."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from hookcore.config import Flat, flatten
from hookcore.recorder.instances import instances_of

_HYDRA: Final = "hydra.core.hydra_config"
_HYDRA_FILE: Final = "config.yaml"  # which it writes before it calls the script's function


def options_of_script(given: Collection[str]) -> Flat | None:
    """Return the options of the running script, defaults included; None if it has none that are known.

    `given` are the names on the command line: if there are several namespaces, those with one of these names count.
    """
    hydra = _options_of_hydra()
    return hydra if hydra is not None else _options_of_argparse(given)


def _options_of_argparse(given: Collection[str]) -> Flat | None:
    argparse = sys.modules.get("argparse")
    if argparse is None:
        return None
    found = [dict(vars(each)) for each in instances_of(argparse.Namespace)]
    if len(found) > 1:  # libraries have their own
        found = [each for each in found if not each.keys().isdisjoint(given)]
    options = {name: value for each in found for name, value in each.items() if not _is_function(value)}
    return flatten(options) if options else None


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)  # of a subcommand


def _options_of_hydra() -> Flat | None:
    """Return the composed configuration, which Hydra has written to disk."""
    module: Any = sys.modules.get(_HYDRA)
    if module is None or not module.HydraConfig.initialized():
        return None
    from omegaconf import OmegaConf

    hydra = module.HydraConfig.get()
    if hydra.output_subdir is None:
        return None
    return flatten(OmegaConf.load(Path(hydra.runtime.output_dir) / hydra.output_subdir / _HYDRA_FILE))
