"""Free numbers and lines: none has two owners, none is lost, and offers keep the rules of streams.

The proof follows one number that the solver chose. Users give back only numbers that they were
given.
"""

from amaranth.hdl import Assert, Assume, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from hdl.config import Config
from hdl.kit.free_list import FreeList
from hdl.memory.allocator import LineAllocator
from sim.formal.runner import Proof, any_constant
from sim.formal.stream_rules import StreamRules

NUMBERS = 4
RETURN_CYCLES = 3
"""Cycles after which a number that was given back can be taken."""
LINES = 16
USERS = 2
RETURNS = 2
RESERVE = 3
SETTLED = RETURNS + 2
"""Cycles without a transfer after which the count is exact. Returned numbers wait in a queue, and
are then counted."""


class FreeListSpecification(wiring.Component):
    """A number is handed out only while it is free, and before any number that came back after it.
    """

    def __init__(self, numbers: FreeList):
        self._numbers = numbers
        super().__init__(numbers.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.numbers = numbers = self._numbers
        connect(m, numbers.take, flipped(self.take))
        connect(m, flipped(self.give), numbers.give)
        m.submodules.rules = rules = StreamRules(numbers.take, role=Assert)
        mark = any_constant(len(numbers.take.payload))
        owned = Signal()
        passed = Signal(range(NUMBERS + 1))
        out = Signal(range(NUMBERS + 1))
        coming = Signal()  # given back, not counted yet
        still = Signal(range(RETURN_CYCLES + 1))
        taken = rules.transfer & (numbers.take.payload == mark)
        given = numbers.give.valid & (numbers.give.payload == mark)
        m.d.comb += [
            Assume(~given | owned),
            Assume(~numbers.give.valid | (out != 0)),
            Assert(numbers.give.ready),
            Assert(~taken | ~owned),
            Assert(passed < NUMBERS),
            Assert(numbers.level + out + coming == NUMBERS),
            # What is counted is there, once nothing is on its way back.
            Assert((still != RETURN_CYCLES) | (numbers.take.valid == (numbers.level != 0))),
        ]
        with m.If(numbers.give.valid):
            m.d.sync += still.eq(0)
        with m.Elif(still != RETURN_CYCLES):
            m.d.sync += still.eq(still + 1)
        m.d.sync += [
            out.eq(out + rules.transfer - numbers.give.valid),
            coming.eq(numbers.give.valid),
        ]
        with m.If(taken):
            m.d.sync += owned.eq(1)
        with m.Elif(given):
            m.d.sync += owned.eq(0)
        with m.If(taken | owned):
            m.d.sync += passed.eq(0)
        with m.Elif(rules.transfer):
            m.d.sync += passed.eq(passed + 1)
        return m


class AllocatorSpecification(wiring.Component):
    """A line has one owner, offers are stable, a reserve is left, and the count is right."""

    def __init__(self, allocator: LineAllocator):
        self._allocator = allocator
        super().__init__(allocator.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.allocator = allocator = self._allocator
        mark = any_constant(len(allocator.allocate[0].payload))
        owned = Signal()
        in_use = Signal(range(LINES + 1))
        just_taken = Signal(range(USERS + 1))
        still = Signal(range(SETTLED + 1))
        taken, given, takes, gives, offers = [], [], [], [], []
        for index, port in enumerate(allocator.allocate):
            connect(m, port, flipped(self.allocate[index]))
            m.submodules[f"allocate_rules_{index}"] = rules = StreamRules(port, role=Assert)
            takes.append(rules.transfer)
            taken.append(rules.transfer & (port.payload == mark))
            offers.append(port.valid & (port.payload == mark))
        for index, port in enumerate(allocator.free):
            connect(m, flipped(self.free[index]), port)
            m.submodules[f"free_rules_{index}"] = rules = StreamRules(port, role=Assume)
            gives.append(rules.transfer)
            given.append(port.valid & (port.payload == mark))
        returned = Signal()
        m.d.comb += [
            returned.eq(
                sum(
                    give & (port.payload == mark)
                    for give, port in zip(gives, allocator.free, strict=True)
                )
            ),
            Assume(sum(given) <= 1),
            Assume((sum(given) == 0) | owned),
            Assume(sum(port.valid for port in allocator.free) <= in_use),
            Assert(sum(offers) <= 1),
            Assert((sum(offers) == 0) | ~owned),
            # Lines taken in the last cycle are still counted, those on their way back not yet.
            Assert(allocator.available + in_use <= LINES + just_taken),
            Assert(allocator.available + in_use + RETURNS + 1 >= LINES + just_taken),
            Assert((still != SETTLED) | (allocator.available + in_use == LINES)),
        ]
        with m.If(Cat(takes, gives).any()):
            m.d.sync += still.eq(0)
        with m.Elif(still != SETTLED):
            m.d.sync += still.eq(still + 1)
        m.d.sync += [
            just_taken.eq(sum(takes)),
            in_use.eq(in_use + sum(takes) - sum(gives)),
            owned.eq((owned | sum(taken)) & ~returned),
        ]

        # A new offer to the user with a reserve leaves that many lines that nobody is offered.
        reserved = allocator.allocate[USERS - 1]
        was_offered = Signal()
        m.d.sync += was_offered.eq(reserved.valid & ~reserved.ready)
        others = sum(port.valid for port in allocator.allocate)
        before = Signal(range(LINES + 1))
        m.d.sync += before.eq(LINES - in_use - others)
        with m.If(reserved.valid & ~was_offered):
            m.d.comb += Assert(before > RESERVE)
        return m


class ForgetfulFreeList(FreeList):
    """Mutant: a number that comes back while the counter runs is not kept."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        given = Signal()
        m.d.sync += given.eq(self.give.valid)
        m.d.comb += m.submodules.returned.input.valid.eq(given & (self.level != 0))
        return m


class RepeatingFreeList(FreeList):
    """Mutant: a number stays at the front after it was taken."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += m.submodules.returned.output.ready.eq(self.take.ready & (self.level == 1))
        return m


class WithdrawingAllocator(LineAllocator):
    """Mutant: an offer is withdrawn when a line comes back."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.free[0].valid):
            m.d.sync += self.allocate[0].valid.eq(0)
        return m


class SharingAllocator(LineAllocator):
    """Mutant: two users are offered the same line."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(~self.allocate[1].valid & self.allocate[0].valid):
            m.d.sync += [
                self.allocate[1].valid.eq(1),
                self.allocate[1].payload.eq(self.allocate[0].payload),
            ]
        return m


def _allocator(
    kind: type[LineAllocator] = LineAllocator, reserve: int = RESERVE
) -> AllocatorSpecification:
    return AllocatorSpecification(
        kind(
            config=Config(lines=LINES),
            users=USERS,
            returns=RETURNS,
            reserves=(0,) * (USERS - 1) + (reserve,),
        )
    )


COUNTEREXAMPLES = "smtbmc yices"
"""Engine of the mutants: ABC's counterexamples cannot be converted for designs with memories."""

PROOFS = [
    Proof(
        name="free_list",
        build=lambda: FreeListSpecification(FreeList(count=NUMBERS)),
        slow=True,
    ),
    Proof(
        name="free_list_bounded",
        build=lambda: FreeListSpecification(FreeList(count=NUMBERS)),
        mode="bmc",
        depth=10,
        slow=True,
        engine=COUNTEREXAMPLES,
        mutants=[
            lambda: FreeListSpecification(ForgetfulFreeList(count=NUMBERS)),
            lambda: FreeListSpecification(RepeatingFreeList(count=NUMBERS)),
        ],
    ),
    Proof(name="allocator", build=_allocator, mode="bmc", depth=22, slow=True),
    Proof(
        name="allocator_bounded",
        build=_allocator,
        mode="bmc",
        depth=17,
        engine=COUNTEREXAMPLES,
        mutants=[
            lambda: _allocator(WithdrawingAllocator),
            lambda: _allocator(SharingAllocator),
            lambda: _allocator(reserve=RESERVE - 1),
        ],
    ),
]
