"""Whether functions that are made differently are the same, by a SAT solver."""

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from tools.same.logic import FALSE, TRUE, Logic, State

SECONDS = 120
"""Given to the solver for each question; without an answer nothing is proved."""

TRIALS = 1024
"""Values at random that functions are tried with at a time."""

SOLVER = Path(sys.executable).parent / "yices-sat"


class Answer(Enum):
    """What a solver says."""

    NEVER = "never"
    SOMETIMES = "sometimes"
    UNKNOWN = "unknown"


class Joined:
    """Bits of two designs in one, with states that are taken to be equal as one leaf."""

    def __init__(self) -> None:
        self.logic = Logic()
        self.inputs: dict[tuple[str, int], int] = {}

    def join(self, other: Logic, leaves: dict[int, int]) -> list[int]:
        """The literal here of each node of ``other``; ``leaves`` gains those of its states."""
        found = [FALSE]
        for node, gate in enumerate(other.gates[1:], start=1):
            if gate is None:
                name = other.inputs.get(node)
                kept = leaves.get(node) if name is None else self.inputs.get(name)
                literal = self.logic.leaf() if kept is None else kept
                if name is None:
                    leaves[node] = literal
                else:
                    self.inputs[name] = literal
            else:
                kind, literals = gate
                literal = self._gate(kind, [found[one >> 1] ^ (one & 1) for one in literals])
            found.append(literal)
        return found

    def _gate(self, kind: str, literals: list[int]) -> int:
        match kind:
            case "&":
                return self.logic.all(*literals)
            case "^":
                return self.logic.xor(*literals)
        words, _, bit = kind.rpartition(" ")
        return self.logic.word(words, int(bit), tuple(literals))

    def differ(self, a: Iterable[int], b: Iterable[int]) -> int:
        """Whether one of the literals ``a`` differs from its like of ``b``."""
        return self.logic.any(*(self.logic.xor(*pair) for pair in zip(a, b, strict=True)))

    def states_differ(self, a: State, b: State, of_a: list[int], of_b: list[int]) -> int:
        """Whether what makes the next value of ``a`` and ``b`` may differ."""

        def literals(inputs: tuple[int, ...], found: list[int]) -> list[int]:
            return [found[literal >> 1] ^ (literal & 1) for literal in inputs]

        if a.kind != b.kind or len(a.writes) != len(b.writes) or len(a.inputs) != len(b.inputs):
            return TRUE
        x, y = literals(a.inputs, of_a), literals(b.inputs, of_b)
        if a.kind[0] == "register":
            return self.differ(x, y)
        # Of a memory addresses and data matter only where it is read or written.
        found = [self.differ(x[:2], y[:2]), self.logic.all(x[1], self.differ(x[2:], y[2:]))]
        for one, other in zip(a.writes, b.writes, strict=True):
            x, y = literals(one, of_a), literals(other, of_b)
            if len(x) != len(y):
                return TRUE
            found.append(self.differ(x[:4], y[:4]))
            found.append(self.logic.all(x[3], self.differ(x[4:], y[4:])))
        return self.logic.any(*found)

    def tried(self, near: dict[int, int] | None = None) -> list[int]:
        """For each node its values in `TRIALS` trials, a bit each: leaves are at random.

        ``near``: values of leaves, of which only some are other in a trial, and none in the first.
        """
        values: list[int] = []
        dice = random.Random(len(self.logic.gates))
        everywhere = (1 << TRIALS) - 1
        for gate in self.logic.gates:
            if gate is None or len(gate[0]) > 1:
                value = dice.getrandbits(TRIALS)
                if near is not None:
                    value &= dice.getrandbits(TRIALS) & dice.getrandbits(TRIALS) & ~1
                    value ^= everywhere * near.get(len(values), 0)
            else:
                kind, literals = gate
                value = everywhere if kind == "&" else 0
                for literal in literals:
                    taken = values[literal >> 1] ^ everywhere * (literal & 1)
                    value = value & taken if kind == "&" else value ^ taken
            values.append(value if values else 0)
        return values

    def refuted(self, literals: list[int]) -> set[int]:
        """Which of ``literals`` can be 1, or are not known never to be."""
        found = self._ones(literals, self.tried())
        while left := [literal for literal in literals if literal not in found]:
            wanted = self.logic.any(*left)
            if wanted == FALSE:
                break
            answer, model = self._ask(wanted)
            if answer is Answer.NEVER:
                break
            if answer is Answer.UNKNOWN:
                if len(left) == 1:
                    return found | set(left)
                half = len(left) // 2
                return found | self.refuted(left[:half]) | self.refuted(left[half:])
            found |= self._ones(left, self.tried(model))
        return found

    @staticmethod
    def _ones(literals: list[int], values: list[int]) -> set[int]:
        everywhere = (1 << TRIALS) - 1
        return {one for one in literals if values[one >> 1] ^ everywhere * (one & 1)}

    def _ask(self, wanted: int) -> tuple["Answer", dict[int, int]]:
        """Whether ``wanted`` can be 1, and values of nodes with which it is."""
        if wanted == TRUE:
            return Answer.SOMETIMES, {}
        clauses, nodes = self._clauses(wanted)
        with tempfile.NamedTemporaryFile("w", suffix=".cnf") as file:
            file.write(clauses)
            file.flush()
            try:
                result = subprocess.run(
                    [SOLVER, "--model", file.name],
                    capture_output=True, text=True, check=False, timeout=SECONDS,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return Answer.UNKNOWN, {}
        answer, _, model = result.stdout.strip().partition("\n")
        if answer == "unsat":
            return Answer.NEVER, {}
        if answer != "sat":
            raise RuntimeError(f"yices-sat says {answer or result.stderr!r}")
        true = {int(text) for text in model.split()}
        return Answer.SOMETIMES, {node: int(name in true) for node, name in nodes.items()}

    def _clauses(self, wanted: int) -> tuple[str, dict[int, int]]:
        """The question in DIMACS, and each node's variable in it."""
        numbers: dict[int, int] = {}
        clauses: list[list[int]] = []
        waiting = [wanted >> 1]
        while waiting:
            node = waiting.pop()
            if node in numbers:
                continue
            numbers[node] = len(numbers) + 1
            gate = self.logic.gates[node]
            if gate is not None and len(gate[0]) == 1:
                waiting += [literal >> 1 for literal in gate[1]]

        def number(literal: int) -> int:
            return -numbers[literal >> 1] if literal & 1 else numbers[literal >> 1]

        for node, name in numbers.items():
            gate = self.logic.gates[node]
            if gate is None or len(gate[0]) > 1:
                continue
            kind, literals = gate
            taken = [number(literal) for literal in literals]
            if kind == "&":
                clauses += [[-name, one] for one in taken]
                clauses.append([name, *(-one for one in taken)])
            else:
                x, y = taken
                clauses += [[-name, x, y], [-name, -x, -y], [name, -x, y], [name, x, -y]]
        if FALSE in numbers:
            clauses.append([-numbers[FALSE]])
        clauses.append([number(wanted)])
        lines = [f"p cnf {len(numbers)} {len(clauses)}"]
        lines += [" ".join(str(one) for one in clause) + " 0" for clause in clauses]
        return "\n".join(lines) + "\n", numbers
