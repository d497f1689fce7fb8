"""Iteration over a model's tree by identity, because the user's modules may override comparison, hash, or listing."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def walk(root: nn.Module, *, every_path: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules from `root` down, in torch's order; a shared one once, or under each of its paths."""
    # Without recursion: a model may be nested more deeply than Python's stack allows.
    seen = {id(root)}
    yield "", root
    stack = [("", root, iter(list(root._modules.items())))]
    while stack:
        path, module, children = stack[-1]
        for name, child in children:
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            below = f"{path}.{name}" if path else name
            yield below, child
            stack.append((below, child, iter(list(child._modules.items()))))
            break
        else:
            stack.pop()
            if every_path:
                seen.discard(id(module))  # only a module inside itself is cut off


def parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters of a module and everything below it, shared ones once."""
    seen: set[int] = set()
    for _, child in walk(module):
        for parameter in child._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
