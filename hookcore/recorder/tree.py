"""Walking a model's tree by identity: a module of the user's may compare, hash or list itself as it likes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def walk(root: nn.Module, *, every_path: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """The modules below `root`, itself first, in torch's order; a shared one once, or under each of its paths."""
    yield from _walk(root, "", set(), every_path)


def _walk(module: nn.Module, path: str, seen: set[int], every_path: bool) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{path}.{name}" if path else name, seen, every_path)
    if every_path:
        seen.discard(id(module))  # only a module inside itself is cut off


def parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """The parameters of a module and of all below it, a shared one once."""
    seen: set[int] = set()
    for _, child in walk(module):
        for parameter in child._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
