"""The modules of a model as the patterns see them."""

from __future__ import annotations

from torch import nn

from hookcore.config import Settings
from hookcore.errors import PatternError
from hookcore.hooks.compiled import clean_path
from hookcore.patterns import select
from hookcore.recorder.roots import Root
from hookcore.recorder.tree import walk


class LaterModules:
    """Selects modules that came later: the patterns hold for them, but none of them has to match."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def reason(self, path: str, module: nn.Module) -> str:
        """Return why a module is left out, or an empty string."""
        leaves = set() if module._modules else {path}
        chosen = self._settings
        try:
            return select({path: module}, leaves, chosen.include, chosen.exclude, strict=False).reason(path)
        except PatternError:
            return "matched by no include pattern"


def modules_of(root: Root) -> dict[str, nn.Module]:
    """Return the modules of a model by path."""
    top = root.ref()
    return {} if top is None else {clean_path(path): child for path, child in walk(top)}


def leaves_of(modules: dict[str, nn.Module]) -> set[str]:
    """Return the paths of the modules without children."""
    return {path for path, child in modules.items() if not child._modules}
