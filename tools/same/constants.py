"""States that never change, taken for the constants that they are.

An option that a design leaves out leaves registers behind whose inputs are constant. Synthesis
drops them, and so does this: what no input and no clock can change is its initial value, and what
no output depends on any more is left out.
"""

from dataclasses import replace

from tools.same.logic import FALSE, TRUE, Logic, State
from tools.same.prove import Joined

UNKNOWN = 2
"""Neither 0 nor 1 for sure."""


def without_constants(logic: Logic) -> Logic:
    """``logic`` with constants instead of the states that keep their initial value for ever.

    Such a state is found by simulation with unknown inputs: each state that may differ from its
    initial value becomes unknown too, until no other one does.
    """
    values = _simulated(logic)
    initial = {node: _initial(state) for node, state in logic.states.items()}
    constant = {
        node: TRUE if initial[node] else FALSE
        for node in logic.states
        if values[node] != UNKNOWN
    }
    joined = Joined()
    found = joined.join(logic, dict(constant))

    def of(literals: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(found[literal >> 1] ^ (literal & 1) for literal in literals)

    result = joined.logic
    result.outputs = {name: of((literal,))[0] for name, literal in logic.outputs.items()}
    states = {
        found[node] >> 1: replace(
            state,
            inputs=of(state.inputs),
            writes=tuple(port for port in map(of, state.writes) if port[3] != FALSE),
        )
        for node, state in logic.states.items()
        if node not in constant
    }
    needed = _needed(result, states)
    result.states = {node: state for node, state in states.items() if node in needed}
    result.inputs = {literal >> 1: name for name, literal in joined.inputs.items()}
    return result


def _initial(state: State) -> int:
    """A register's initial value; that of a memory's read port is 0."""
    return state.kind[1] if state.kind[0] == "register" else 0


def _simulated(logic: Logic) -> list[int]:
    """For each node the value that it always has, or `UNKNOWN`."""
    users: list[list[int]] = [[] for _ in logic.gates]
    values = [FALSE]
    for node, gate in enumerate(logic.gates[1:], start=1):
        if gate is not None:
            for literal in gate[1]:
                users[literal >> 1].append(node)
            values.append(_gate(gate, values))
        else:
            state = logic.states.get(node)
            values.append(UNKNOWN if state is None else _initial(state))
    states: dict[int, list[int]] = {}
    for node, state in logic.states.items():
        for literal in (*state.inputs, *(one for port in state.writes for one in port)):
            states.setdefault(literal >> 1, []).append(node)
    waiting = [node for node, state in logic.states.items() if _changes(state, values)]
    for node in waiting:
        values[node] = UNKNOWN
    while waiting:
        node = waiting.pop()
        for user in users[node]:
            gate = logic.gates[user]
            if values[user] != UNKNOWN and gate and _gate(gate, values) != values[user]:
                values[user] = UNKNOWN
                waiting.append(user)
        for other in states.get(node, ()):
            if values[other] != UNKNOWN and _changes(logic.states[other], values):
                values[other] = UNKNOWN
                waiting.append(other)
    return values


def _literal(literal: int, values: list[int]) -> int:
    value = values[literal >> 1]
    return value if value == UNKNOWN else value ^ (literal & 1)


def _gate(gate: tuple[str, tuple[int, ...]], values: list[int]) -> int:
    kind, literals = gate
    taken = [_literal(literal, values) for literal in literals]
    if kind == "&":
        return 0 if 0 in taken else UNKNOWN if UNKNOWN in taken else 1
    if kind != "^" or UNKNOWN in taken:
        return UNKNOWN
    return taken[0] ^ taken[1]


def _changes(state: State, values: list[int]) -> bool:
    """Whether the state may take another value than its initial one."""
    if state.kind[0] == "register":
        return _literal(state.inputs[0], values) != state.kind[1]
    if state.kind[2]:
        return True  # contents that are not all 0
    return any(
        _literal(enable, values) != 0 and _literal(written, values) != 0
        for _, _, _, enable, written, *_ in state.writes
    )


def _needed(logic: Logic, states: dict[int, State]) -> set[int]:
    """The nodes that outputs depend on, through states too."""
    found: set[int] = set()
    waiting = [literal >> 1 for literal in logic.outputs.values()]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if (gate := logic.gates[node]) is not None:
            waiting += [literal >> 1 for literal in gate[1]]
        elif (state := states.get(node)) is not None:
            ports = (state.inputs, *state.writes)
            waiting += [literal >> 1 for literals in ports for literal in literals]
    return found
