"""What patterns can test of the modules of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hookcore.config.patterns import Facts
from hookcore.records import ModuleRecord


def facts_of(
    modules: Sequence[ModuleRecord],
    observed: Collection[str],
    captured: Mapping[str, bool],
    nonfinite: Collection[str],
    dead: Collection[str],
) -> dict[str, Facts]:
    """Return the facts about each module by path, then about other observed tensors."""
    # A module that stands in several places is a child in each of them.
    parents = {module.parent for module in modules}
    parents |= {_parent_of(alias) for module in modules for alias in module.aliases}
    found = {
        module.path: Facts(
            module.path,
            (module.type, *module.bases, "Module", "object"),
            is_root=module.parent is None,
            is_leaf=module.path not in parents,
            aliases=module.aliases,
            parameters=module.parameters,
            trainable=module.trainable,
            captured=captured.get(module.path, module.path in observed),
            nan=module.path in nonfinite,
            dead=module.path in dead,
        )
        for module in modules
    }
    for path in observed:
        if path not in found:
            found[path] = Facts(path, captured=True, nan=path in nonfinite, dead=path in dead)
    return found


def _parent_of(path: str) -> str | None:
    """Return the path above, where a root's name ends with a slash."""
    return path[: max(path.rfind("."), path.rfind("/"), 0)]
