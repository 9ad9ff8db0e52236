"""`hdl.kit.merge.Merge` keeps the rules of streams, loses nothing and invents nothing.

One payload that the solver chose is marked. It enters once, at an input that the solver chose, and
must leave once. Its neighbours are arbitrary but unmarked.
"""

from amaranth.hdl import Assert, Assume, Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from hdl.kit.merge import Merge
from sim.formal.runner import Proof, any_constant
from sim.formal.stream_rules import StreamRules

PAYLOAD_BITS = 3
INPUTS = 3
PATIENCE = INPUTS + 1
"""Transfers at the output in which a waiting input must have had its turn."""


class MergeSpecification(wiring.Component):
    """Stream rules, conservation of a marked payload, and bounded waiting."""

    def __init__(self, merge: Elaboratable):
        self._merge = merge
        super().__init__(merge.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.merge = merge = self._merge
        connect(m, merge.output, flipped(self.output))
        mark = any_constant(PAYLOAD_BITS)
        entering = []
        for index, port in enumerate(merge.inputs):
            connect(m, flipped(self.inputs[index]), port)
            rules = StreamRules(port, role=Assume)
            m.submodules[f"input_rules_{index}"] = rules
            entering.append(rules.transfer & (port.payload == mark))
            self._waits_its_turn(m, port, merge.output, index)
        m.submodules.output_rules = output_rules = StreamRules(merge.output, role=Assert)

        inside = Signal(2)
        entered = Signal(2)
        left = Signal()
        m.d.comb += [
            entered.eq(sum(entering)),
            left.eq(output_rules.transfer & (merge.output.payload == mark)),
            Assert(inside + entered <= 2),
            Assert((inside != 0) | ~left),
        ]
        m.d.sync += inside.eq(inside + entered - left)
        return m

    def _waits_its_turn(self, m: Module, port, output, index: int) -> None:
        passed = Signal(range(PATIENCE + 2), name=f"passed_{index}")
        with m.If(~port.valid | port.ready):
            m.d.sync += passed.eq(0)
        with m.Elif(output.valid & output.ready & (passed <= PATIENCE)):
            m.d.sync += passed.eq(passed + 1)
        m.d.comb += Assert(passed <= PATIENCE)


class ChangingMerge(Merge):
    """Mutant: the output follows its input while it waits."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.output.valid & self.inputs[0].valid):
            m.d.sync += self.output.payload.eq(self.inputs[0].payload)
        return m


class ForgetfulMerge(Merge):
    """Mutant: an input is taken while the output waits."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.inputs[0].ready.eq(1)
        return m


def _merge(kind: type[Merge]) -> MergeSpecification:
    return MergeSpecification(kind(PAYLOAD_BITS, inputs=INPUTS))


PROOFS = [
    Proof(
        name="merge",
        build=lambda: _merge(Merge),
        mutants=[lambda: _merge(ChangingMerge), lambda: _merge(ForgetfulMerge)],
    )
]
