"""Two designs against each other: alike, proved equal, or different and where."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tools.same.classes import classes
from tools.same.logic import Logic, State
from tools.same.prove import Joined

MOST_STEPS = 3
"""How often states are tried again without those that were not proved equal: more rarely help."""


@dataclass(kw_only=True)
class Comparison:
    """What was found.

    Parameters
    ----------
    alike
        Outputs are the same functions, by structure.
    proved
        They are the same, by a SAT solver (also where they are alike).
    changed
        Bits of states and outputs that are made in another way, by block.
    different
        Of these what could not be proved equal.
    only_before, only_after
        States that only one design has, by block.
    sizes
        Gates and states of each design.
    """

    alike: bool = False
    proved: bool = False
    changed: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    only_before: Counter[str] = field(default_factory=Counter)
    only_after: Counter[str] = field(default_factory=Counter)
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


def compare(
    before: Logic, after: Logic, renamed: Mapping[str, str] | None = None
) -> Comparison:
    """Compares ``before`` with ``after``: first by structure, then by name and proof.

    ``renamed``: as for `pairs`, and ports by their whole names.
    """
    before = _with_ports(before, renamed or {})
    result = Comparison(
        sizes=(
            (len(before.gates), len(before.states)),
            (len(after.gates), len(after.states)),
        )
    )
    ports, ports_now = _ports(before), _ports(after)
    if ports != ports_now:
        result.only_before.update(name for name, _ in ports - ports_now)
        result.only_after.update(name for name, _ in ports_now - ports)
        return result
    values = classes(before, after)
    result.alike = all(
        _value(values[0], literal) == _value(values[1], after.outputs[name])
        for name, literal in before.outputs.items()
    )
    if result.alike:
        result.proved = True
        return result
    _prove(before, after, values, result, pairs(before, after, renamed))
    return result


def _with_ports(logic: Logic, renamed: Mapping[str, str]) -> Logic:
    """``logic`` with ports renamed."""
    return replace(
        logic,
        inputs={
            node: (renamed.get(name, name), bit) for node, (name, bit) in logic.inputs.items()
        },
        outputs={
            (renamed.get(name, name), bit): one for (name, bit), one in logic.outputs.items()
        },
    )


def _ports(logic: Logic) -> set[tuple[str, int]]:
    """The bits of all ports, with their direction."""
    return {
        *((f"input {name}", bit) for name, bit in logic.inputs.values()),
        *((f"output {name}", bit) for name, bit in logic.outputs),
    }


def _value(values: list[int], literal: int) -> int:
    return values[literal >> 1] ^ -(literal & 1)


def pairs(
    before: Logic, after: Logic, renamed: Mapping[str, str] | None = None
) -> list[tuple[int, int]]:
    """States of both designs that are taken for each other.

    Those of the same name in the same block; of the rest those whose signal has a name that no
    other block's has, or the same in as many blocks in the same order. Underscores at the begin of
    a name count only where a block has a name with and without. ``renamed``: names of before,
    modules and signal divided by ``/``, or ends of such, and what they are called now; a bit is
    ``/number`` behind.
    """
    found: list[tuple[int, int]] = []
    rest: list[dict[int, State]] = [dict(before.states), dict(after.states)]
    exact, called = (
        [
            {node: _called(state, renames, loosely=loosely) for node, state in states.items()}
            for states, renames in zip(rest, (renamed or {}, {}), strict=True)
        ]
        for loosely in (False, True)
    )
    for of_designs, depth in ((exact, None), (called, None), (called, 4), (called, 3)):
        names: list[dict[tuple, list[int]]] = []
        for states, paths in zip(rest, of_designs, strict=True):
            by_name: dict[tuple, list[int]] = defaultdict(list)
            for node, state in states.items():
                name = paths[node] if depth is None else paths[node][-depth:]
                by_name[state.kind, name].append(node)
            names.append(by_name)
        for name, nodes in names[0].items():
            others = names[1].get(name, [])
            if len(nodes) == len(others):
                found += zip(nodes, others, strict=True)
                for node, other in zip(nodes, others, strict=True):
                    del rest[0][node], rest[1][other]
    return found


def _called(state: State, renamed: Mapping[str, str], *, loosely: bool) -> tuple[str, ...]:
    """Modules, signal and bit, without what only tells names of one module apart. The memory of a
    `hdl.kit.table.Table` is called as the table. With ``loosely`` without underscores at the begin.
    """
    parts = [re.sub(r"\$\d+$", "", part) for part in state.name]
    if loosely:
        parts = [part.lstrip("_") for part in parts]
    path = re.sub(r"/entries(\d*)/", r"\1/", "/" + "/".join(parts) + "/")
    for old, new in renamed.items():
        path = path.replace(f"/{old}/", f"/{new}/")
    return tuple(path.strip("/").split("/"))


def _prove(
    before: Logic,
    after: Logic,
    values: list[list[int]],
    result: Comparison,
    taken: list[tuple[int, int]],
) -> None:
    for states, counted, place in (
        (before.states, result.only_before, 0),
        (after.states, result.only_after, 1),
    ):
        known = {pair[place] for pair in taken}
        counted.update(_block(state) for node, state in states.items() if node not in known)
    for step in range(MOST_STEPS):
        joined = Joined()
        # What is in one class is equal; what is paired is taken to be, and asked about.
        leaves: dict[int, int] = {}
        of_class: dict[int, int] = {}
        for node in before.states:
            leaves[node] = of_class.setdefault(values[0][node], joined.logic.leaf())
        of_pairs = {other: leaves[node] for node, other in taken}
        of_before = joined.join(before, leaves)
        of_after = joined.join(
            after,
            {
                other: of_pairs.get(other) or of_class.setdefault(value, joined.logic.leaf())
                for other, value in ((other, values[1][other]) for other in after.states)
            },
        )
        asked: dict[str, list[tuple[tuple[int, int], int]]] = defaultdict(list)
        for node, other in taken:
            if values[0][node] == values[1][other]:
                continue
            a, b = before.states[node], after.states[other]
            literal = joined.states_differ(a, b, of_before, of_after)
            if literal != 0:
                asked[_block(b)].append(((node, other), literal))
        outputs = [
            joined.logic.xor(
                of_before[literal >> 1] ^ (literal & 1),
                of_after[after.outputs[name] >> 1] ^ (after.outputs[name] & 1),
            )
            for name, literal in before.outputs.items()
        ]
        if step == 0:
            result.changed.update({block: len(bits) for block, bits in asked.items()})
            result.changed["outputs"] += sum(literal != 0 for literal in outputs)
        literals = [literal for bits in asked.values() for _, literal in bits]
        possible = joined.refuted(literals)
        refuted = [pair for bits in asked.values() for pair, one in bits if one in possible]
        if not refuted:
            possible = joined.refuted(outputs)
            result.proved = not possible
            result.different["outputs"] += sum(literal in possible for literal in outputs)
            return
        # What is not proved of these pairs may not be used of the others either.
        result.different.update(_block(after.states[other]) for _, other in refuted)
        gone = set(refuted)
        taken = [pair for pair in taken if pair not in gone]


def _block(state: State) -> str:
    return ".".join(state.name[1:-2]) or "top"
