"""The modules of a model as the patterns see them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hookcore.config import Settings
from hookcore.config.patterns import select
from hookcore.errors import PatternError
from hookcore.hooks.compiled import clean_path
from hookcore.hooks.tree import walk
from hookcore.recorder.plans import Plan
from hookcore.recorder.roots import Root

Aliases = dict[str, tuple[str, ...]]


class LaterModules:
    """Selects modules that came later: the patterns hold for them, but none of them has to match."""

    def __init__(self, settings: Settings, root: Root) -> None:
        self._patterns, self._aliases = (settings.include, settings.exclude), aliases_of(root)

    def reason(self, path: str, module: nn.Module) -> str:
        """Return why a module is left out, or an empty string."""
        leaves = set() if module._modules else {path}
        try:
            return select({path: module}, leaves, *self._patterns, strict=False, aliases=self._aliases).reason(path)
        except PatternError:
            return "matched by no include pattern"


def reasons_of(plans: Sequence[Plan], settings: Settings) -> list[tuple[Plan, str]]:
    """Return why modules are left out that came later."""
    selection = {root: LaterModules(settings, root) for root in {plan.root for plan in plans}}
    found = []
    for plan in plans:
        if (module := plan.ref()) is not None:
            path = "" if plan.is_root else plan.path.removeprefix(f"{plan.root.name}/")
            found.append((plan, selection[plan.root].reason(path, module)))
    return found


def modules_of(root: Root) -> dict[str, nn.Module]:
    """Return the modules of a model by path."""
    top = root.ref()
    return {} if top is None else {clean_path(path): child for path, child in walk(top)}


def paths_of(root: Root) -> dict[int, list[str]]:
    """Return all paths of each module of a model, by the module's identity."""
    top, paths = root.ref(), dict[int, list[str]]()
    for path, module in () if top is None else walk(top, every_path=True):
        paths.setdefault(id(module), []).append(clean_path(path))
    return paths


def aliases_of(root: Root) -> Aliases:
    """Return the other paths of each module that a model has more than once, by its first path."""
    return {first: tuple(others) for first, *others in paths_of(root).values() if others}


def leaves_of(modules: dict[str, nn.Module]) -> set[str]:
    """Return the paths of the modules without children."""
    return {path for path, child in modules.items() if not child._modules}
