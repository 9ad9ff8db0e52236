"""A design as single bits: what each register, memory and output is a function of.

Modules, names, the order of statements and the grouping of bits into words are gone: two designs
that say the same logic in another way come out alike. Assertions and prints are not hardware and
are left out; so is all that no output depends on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth import Value
from amaranth.hdl._ir import Fragment, PortDirection, build_netlist
from amaranth.lib import wiring

FALSE, TRUE = 0, 1
"""Literals: twice a node's number, plus 1 for its inverse. Node 0 is constant."""


@dataclass(kw_only=True)
class Logic:
    """The bits of a design.

    Parameters
    ----------
    gates
        For each node: ``None`` of a leaf, else what it does (``"&"``, ``"^"`` or a word's operation
        and bit) and the literals it is made of. A node's literals are of smaller numbers.
    inputs
        The node of each bit of an input port, by name and bit.
    outputs
        The literal of each bit of an output port, by name and bit.
    states
        What the next value of each leaf that holds a state depends on.
    """

    gates: list[tuple[str, tuple[int, ...]] | None] = field(default_factory=lambda: [None])
    inputs: dict[int, tuple[str, int]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], int] = field(default_factory=dict)
    states: dict[int, "State"] = field(default_factory=dict)
    known: dict[Any, int] = field(default_factory=dict)

    def leaf(self) -> int:
        """The literal of a new node that is made of nothing."""
        self.gates.append(None)
        return 2 * (len(self.gates) - 1)

    def _gate(self, kind: str, literals: tuple[int, ...]) -> int:
        key = (kind, literals)
        if key not in self.known:
            self.gates.append(key)
            self.known[key] = 2 * (len(self.gates) - 1)
        return self.known[key]

    def all(self, *literals: int) -> int:
        """Whether all of ``literals`` are 1."""
        some = set(literals) - {TRUE}
        if FALSE in some or any(literal ^ 1 in some for literal in some):
            return FALSE
        if not some:
            return TRUE
        return some.pop() if len(some) == 1 else self._gate("&", tuple(sorted(some)))

    def any(self, *literals: int) -> int:
        """Whether one of ``literals`` is 1."""
        return self.all(*(literal ^ 1 for literal in literals)) ^ 1

    def xor(self, a: int, b: int) -> int:
        """Whether ``a`` and ``b`` differ."""
        inverted = (a ^ b) & 1
        a, b = sorted((a & ~1, b & ~1))
        if a == b:
            return FALSE ^ inverted
        return b ^ inverted if a == FALSE else self._gate("^", (a, b)) ^ inverted

    def word(self, kind: str, bit: int, literals: tuple[int, ...]) -> int:
        """Bit ``bit`` of an operation that is not taken apart, such as a division."""
        return self._gate(f"{kind} {bit}", literals)

    def choose(self, condition: int, yes: int, no: int) -> int:
        """``yes`` if ``condition``, else ``no``."""
        if condition in (FALSE, TRUE) or yes == no:
            return yes if condition == TRUE else no
        if yes == no ^ 1:
            return self.xor(condition, no)
        return self.any(self.all(condition, yes), self.all(condition ^ 1, no))


@dataclass(frozen=True, kw_only=True)
class State:
    """A bit that a clock changes: a register, or a bit of a memory's read port.

    Parameters
    ----------
    name
        Modules and signal, and the bit.
    kind
        What two such bits must have alike, but for their inputs: initial values, clock edge.
    inputs
        Literals, in an order that means something.
    writes
        Of a memory's bit: the literals of each port that writes it. The order means nothing.
    """

    name: tuple[str, ...]
    kind: tuple
    inputs: tuple[int, ...]
    writes: tuple[tuple[int, ...], ...] = ()


def logic_of(component: wiring.Component) -> Logic:
    """The bits of ``component``, of what its outputs depend on. `ValueError` for what has none."""
    ports = [
        (
            "__".join(str(part) for part in path),
            Value.cast(value),
            PortDirection.Output if member.flow == wiring.Out else PortDirection.Input,
        )
        for path, member, value in component.signature.flatten(component)
    ]
    return _Reader(build_netlist(Fragment.get(component, None), ports=ports)).logic


class _Reader:
    """Turns Amaranth's netlist into bits, from the outputs backwards."""

    def __init__(self, netlist: Any) -> None:
        self.cells = netlist.cells
        self.modules = netlist.modules
        self.logic = Logic()
        self.literals: dict[int, int] = {}
        self.registers: list[tuple[Any, int, int]] = []
        # Of the signals that are the same net the one that is a whole register; of those the one
        # with the shortest name, which is most likely to be the register itself.
        names: dict[Any, tuple[bool, int, tuple[str, int]]] = {}
        for signal, nets in netlist.signals.items():
            part = not self._is_whole(nets)
            for bit, net in enumerate(nets):
                known, own = names.get(net), (part, len(signal.name), (signal.name, bit))
                if known is None or own < known:
                    names[net] = own
        self.names = {net: name for net, (_, _, name) in names.items()}
        self.writers: dict[int, list[tuple[int, Any]]] = {}
        self.readers: dict[int, list[int]] = {}
        for index, cell in enumerate(self.cells):
            match type(cell).__name__:
                case "SyncWritePort":
                    self.writers.setdefault(cell.memory, []).append((index, cell))
                case "SyncReadPort":
                    self.readers.setdefault(cell.memory, []).append(index)
        top = netlist.top
        for name, (start, width) in top.ports_i.items():
            for bit in range(width):
                literal = self.logic.leaf()
                self.literals[self._net(0, start + bit)] = literal
                self.logic.inputs[literal >> 1] = (name, bit)
        for name, value in top.ports_o.items():
            for bit, net in enumerate(value):
                self.logic.outputs[name, bit] = self.literal(net)
        # What the states depend on brings further states.
        found: list[tuple[int, int, int]] = []
        while self.registers:
            register = self.registers.pop()
            self._state(*register)
            found.append(register)
        # In the order of the netlist, not that of the search: two of one name stay in order.
        self.logic.states = {node: self.logic.states[node] for _, _, node in sorted(found)}

    def _is_whole(self, nets: Any) -> bool:
        """Whether ``nets`` are all bits of one register."""
        first = next(iter(nets), None)
        if first is None or first.is_const:
            return False
        cell = self.cells[first.cell]
        if type(cell).__name__ != "FlipFlop" or len(cell.data) != len(nets):
            return False
        return all(
            not net.is_const and (net.cell, net.bit) == (first.cell, bit)
            for bit, net in enumerate(nets)
        )

    @staticmethod
    def _net(cell: int, bit: int) -> int:
        return (cell << 16) | bit

    def literal(self, net: Any) -> int:
        """The literal of ``net``; what it depends on is read first, without recursion."""
        waiting = [net]
        while waiting:
            now = waiting[-1]
            if self._literal(now) is not None:
                waiting.pop()
                continue
            cell = self.cells[now.cell]
            needed = [
                source
                for source, _ in self._edges(cell, now.bit)
                if self._literal(source) is None
            ]
            if needed:
                waiting += needed
                continue
            self._read(now.cell, cell, now.bit)
            waiting.pop()
        return self._literal(net)  # pyright: ignore[reportReturnType]

    def _literal(self, net: Any) -> int | None:
        if net.is_const:
            return int(net.const)
        return self.literals.get(self._net(net.cell, net.bit))

    @staticmethod
    def _edges(cell: Any, bit: int) -> Any:
        if type(cell).__name__ in ("FlipFlop", "SyncReadPort"):
            return ()
        return cell.comb_edges_to(bit)

    def _read(self, index: int, cell: Any, bit: int) -> None:
        kind = type(cell).__name__
        if kind in ("FlipFlop", "SyncReadPort"):
            literal = self.logic.leaf()
            self.literals[self._net(index, bit)] = literal
            self.registers.append((index, bit, literal >> 1))
            return
        method: Callable[[Any, int], int | list[int]] | None = getattr(self, f"_{kind}", None)
        if method is None:
            raise ValueError(f"a {kind} has no bits")
        found = method(cell, bit)
        if isinstance(found, int):
            self.literals[self._net(index, bit)] = found
        else:
            for place, literal in enumerate(found):
                self.literals[self._net(index, place)] = literal

    def _of(self, value: Any) -> list[int]:
        return [self._literal(net) for net in value]  # pyright: ignore[reportReturnType]

    # combinational cells

    def _Operator(self, cell: Any, bit: int) -> int | list[int]:  # noqa: N802
        logic, kind = self.logic, cell.operator
        if kind in ("&", "|", "^", "~", "m"):
            if kind == "m":
                chosen, yes, no = cell.inputs
                return logic.choose(*self._of((chosen[0], yes[bit], no[bit])))
            taken = self._of(value[bit] for value in cell.inputs)
            match kind:
                case "&":
                    return logic.all(*taken)
                case "|":
                    return logic.any(*taken)
                case "^":
                    return logic.xor(*taken)
                case _:
                    return taken[0] ^ 1
        a, *others = [self._of(value) for value in cell.inputs]
        match kind:
            case "b" | "r|":
                return [logic.any(*a)]
            case "r&":
                return [logic.all(*a)]
            case "r^":
                return [self._parity(a)]
            case "-" if not others:
                return self._sum([FALSE] * len(a), [literal ^ 1 for literal in a], TRUE)
        (b,) = others
        match kind:
            case "+":
                return self._sum(a, b, FALSE)
            case "-":
                return self._sum(a, [literal ^ 1 for literal in b], TRUE)
            case "*":
                return self._product(a, b)
            case "==" | "!=":
                equal = logic.all(*(logic.xor(x, y) ^ 1 for x, y in zip(a, b, strict=True)))
                return [equal ^ (kind == "!=")]
            case "<<":
                return self._shifted(a, b, FALSE, -1)
            case "u>>":
                return self._shifted(a, b, FALSE, 1)
            case "s>>":
                return self._shifted(a, b, a[-1], 1)
        sign, order = kind[0], kind[1:]
        if order not in ("<", ">", "<=", ">="):
            words = f"{kind} {len(a)}"
            return [logic.word(words, place, (*a, *b)) for place in range(cell.width)]
        if sign == "s":
            a[-1], b[-1] = a[-1] ^ 1, b[-1] ^ 1
        return [self._less(a, b) if order == "<" else self._less(b, a) if order == ">"
                else self._less(b, a) ^ 1 if order == "<=" else self._less(a, b) ^ 1]  # fmt: skip

    def _parity(self, bits: list[int]) -> int:
        total = FALSE
        for literal in bits:
            total = self.logic.xor(total, literal)
        return total

    def _sum(self, a: list[int], b: list[int], carry: int) -> list[int]:
        logic, total = self.logic, []
        for x, y in zip(a, b, strict=True):
            half = logic.xor(x, y)
            total.append(logic.xor(half, carry))
            carry = logic.any(logic.all(x, y), logic.all(half, carry))
        return total

    def _product(self, a: list[int], b: list[int]) -> list[int]:
        total = [FALSE] * len(a)
        for place, literal in enumerate(b):
            row = [FALSE] * place + [self.logic.all(literal, x) for x in a]
            total = self._sum(total, row[: len(a)], FALSE)
        return total

    def _less(self, a: list[int], b: list[int]) -> int:
        logic, less = self.logic, FALSE
        for x, y in zip(a, b, strict=True):
            less = logic.choose(logic.xor(x, y), y, less)
        return less

    def _shifted(self, a: list[int], by: list[int], fill: int, step: int) -> list[int]:
        width = len(a)
        for place, literal in enumerate(by):
            far = step * min(1 << place, width)
            a = [
                self.logic.choose(literal, a[at + far] if 0 <= at + far < width else fill, a[at])
                for at in range(width)
            ]
        return a

    def _Part(self, cell: Any, bit: int) -> list[int]:  # noqa: N802
        logic, value, offset = self.logic, self._of(cell.value), self._of(cell.offset)
        fill = value[-1] if cell.value_signed and value else FALSE
        places = min(1 << len(offset), -(-len(value) // cell.stride))
        chosen = [
            logic.all(*(literal ^ 1 ^ (place >> at & 1) for at, literal in enumerate(offset)))
            for place in range(places)
        ]
        beyond = logic.any(*chosen) ^ 1
        result = []
        for at in range(cell.width):
            taken = [logic.all(beyond, fill)]
            for place in range(places):
                index = place * cell.stride + at
                taken.append(logic.all(chosen[place], value[index] if index < len(value) else fill))
            result.append(logic.any(*taken))
        return result

    def _Matches(self, cell: Any, bit: int) -> list[int]:  # noqa: N802
        value = self._of(cell.value)[::-1]
        return [
            self.logic.any(
                *(
                    self.logic.all(
                        *(
                            literal ^ (wanted == "0")
                            for literal, wanted in zip(value, pattern, strict=True)
                            if wanted != "-"
                        )
                    )
                    for pattern in cell.patterns
                )
            )
        ]

    def _PriorityMatch(self, cell: Any, bit: int) -> int:  # noqa: N802
        before = [literal ^ 1 for literal in self._of(cell.inputs[:bit])]
        return self.logic.all(*self._of((cell.en, cell.inputs[bit])), *before)

    def _AssignmentList(self, cell: Any, bit: int) -> int:  # noqa: N802
        (literal,) = self._of((cell.default[bit],))
        for assignment in cell.assignments:
            if 0 <= bit - assignment.start < len(assignment.value):
                value = assignment.value[bit - assignment.start]
                condition, yes = self._of((assignment.cond, value))
                literal = self.logic.choose(condition, yes, literal)
        return literal

    # cells that hold a state

    def _state(self, index: int, bit: int, node: int) -> None:
        cell = self.cells[index]
        modules = tuple(str(part) for part in self.modules[cell.module_idx].name)
        read = self._register if type(cell).__name__ == "FlipFlop" else self._read_port
        self.logic.states[node] = read(modules, cell, index, bit)

    def _register(self, modules: tuple[str, ...], cell: Any, index: int, bit: int) -> State:
        from amaranth.hdl._nir import Net

        signal, place = self.names.get(Net.from_cell(index, bit), ("?", bit))
        return State(
            name=(*modules, signal, str(place)),
            kind=("register", cell.init >> bit & 1, cell.clk_edge),
            inputs=tuple(self.literal(net) for net in (cell.data[bit], cell.clk, cell.arst)),
        )

    def _read_port(self, modules: tuple[str, ...], cell: Any, index: int, bit: int) -> State:
        memory = self.cells[cell.memory]
        writes = []
        for number, port in self.writers.get(cell.memory, []):
            enable = port.en[bit * len(port.en) // memory.width]
            writes.append(
                (
                    TRUE if number in cell.transparent_for else FALSE,
                    TRUE if port.clk_edge == "pos" else FALSE,
                    *(self.literal(net) for net in (port.clk, enable, port.data[bit], *port.addr)),
                )
            )
        reader = self.readers[cell.memory].index(index)
        contents = "".join(str(word >> bit & 1) for word in memory.init)
        return State(
            name=(*modules, f"{memory.name}{reader or ''}", str(bit)),
            kind=("memory", memory.depth, contents.rstrip("0"), cell.clk_edge),
            inputs=tuple(self.literal(net) for net in (cell.clk, cell.en, *cell.addr)),
            writes=tuple(writes),
        )
