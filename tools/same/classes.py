"""Which bits of two designs always have the same value, whatever they are called.

At first all states that begin alike are one class. Then each state is told by the function that
makes its next value, of classes instead of states, until no class falls apart any more. What is in
one class at the end holds the same value in every cycle: by induction, since it does at first and
equal classes make equal next values (van Eijk, "Sequential equivalence checking based on structural
similarities", IEEE TCAD 2000). Classes are hashes of 64 bits, so a chance of about one in 10^7 that
two of a million coincide is taken.
"""

from collections.abc import Mapping

from tools.same.logic import Logic, State

MOST_ROUNDS = 4000
"""More than any chain of registers is long."""


def literal_values(logic: Logic, states: Mapping[int, int]) -> list[int]:
    """A hash for each node: of its function of inputs and of the hashes of ``states``."""
    values: list[int] = []
    for node, gate in enumerate(logic.gates):
        if gate is not None:
            kind, literals = gate
            taken = (values[literal >> 1] ^ -(literal & 1) for literal in literals)
            # Ands and exclusive ors commute; words do not.
            values.append(hash((kind, *(sorted(taken) if len(kind) == 1 else taken))))
        elif node in states:
            values.append(states[node])
        else:
            values.append(hash(("input", logic.inputs.get(node))))
    return values


def classes(*designs: Logic) -> list[list[int]]:
    """For each design the class of each node; equal classes, equal values in every cycle."""
    states = [
        {node: hash(state.kind) for node, state in logic.states.items()} for logic in designs
    ]
    count = 0
    for _ in range(MOST_ROUNDS):
        values = [literal_values(*pair) for pair in zip(designs, states, strict=True)]
        states = [
            {node: next_value(state, found) for node, state in logic.states.items()}
            for logic, found in zip(designs, values, strict=True)
        ]
        before, count = count, len({value for found in states for value in found.values()})
        if count == before:
            return values
    raise ValueError(f"classes have not settled in {MOST_ROUNDS} rounds")


def next_value(state: State, values: list[int]) -> int:
    """A hash of what makes the next value of ``state``, ``values`` being those of nodes."""

    def of(literals: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[literal >> 1] ^ -(literal & 1) for literal in literals)

    return hash((state.kind, of(state.inputs), tuple(sorted(of(port) for port in state.writes))))
