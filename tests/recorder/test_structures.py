"""Modules that consist of different parts in different ranks."""

from app.runs.ranks import Structures
from hookcore.records import ModuleRecord

DEEP = ("Net", None), ("Net/module", "Net"), ("Net/module.0", "Net/module"), ("Net/module.1", "Net/module")


def tree(*paths: tuple[str, str | None]) -> list[ModuleRecord]:
    return [ModuleRecord(path, "Module", parent) for path, parent in paths]


def parted(*ranks: list[ModuleRecord]) -> set[str]:
    structures = Structures()
    for rank, modules in enumerate(ranks):
        structures.describe(rank, modules)
    return set(structures.parted)


def test_names_of_models_do_not_count_as_levels() -> None:
    assert parted(tree(*DEEP), tree(*reversed(DEEP))) == set()
    assert parted(tree(*DEEP), tree(*DEEP[:-1])) == {"Net", "Net/module"}


def test_structures_with_and_without_a_root_are_compared() -> None:
    plain = ("", None), ("a", ""), ("a.b", "a")
    assert parted(tree(*plain), tree(*plain)) == set()
    assert parted(tree(*plain), tree(*plain[:-1])) == {"", "a"}
    assert parted(tree(("a.b", "a"), ("a.b.c", "a.b")), tree(("a.b", "a"))) == {"a.b"}


def test_cyclic_descriptions_terminate() -> None:
    assert parted(tree(("a", None), ("b", "a"), ("a", "b")), tree(("a", None))) <= {"a"}
