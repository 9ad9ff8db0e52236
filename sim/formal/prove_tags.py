"""`hdl.pcie.dma.tags.TagTable` never hands out a tag in use, and loses neither tags nor headers.

The specification keeps its own account of every tag. A tag is *out* from its allocation to its
retirement, *closed* once no completion is accepted, and *banned* while quarantined. The environment
closes only live tags and retires only closed ones. When, and in which order, is the solver's
choice. So is the time when the hard block takes a request. Times are checked as long as the link is
up.
"""

from collections.abc import Callable

from amaranth.hdl import Assert, Assume, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.pcie.dma.tags import READ_HEADERS_MOST, TagTable
from sim.formal.runner import Proof
from sim.formal.stream_rules import StreamRules

TAGS = 2
HEADERS = READ_HEADERS_MOST
SETTLING = 4
"""Cycles after which a retired tag is free."""

LONG_TIMEOUT = 1 << 20
"""It may be long, since time jumps."""

SHORT_TIMEOUT = 6
"""Cycles between sweeps. There are more than one sweep takes."""

PERIODS_LEAST = 2
"""Sweeps that a tag certainly outlives, once its request has left."""

MORE_THAN_HALF = HEADERS // 2 + 1
"""Two requests of this size never fit at once."""

CONFIG = Config(read_tags=TAGS, completion_headers=HEADERS)


class TagSpecification(wiring.Component):
    """The properties of the tag table that every user relies on."""

    def __init__(
        self,
        table: TagTable,
        *,
        timeout: int | None = None,
        headers: int | None = None,
        loses: bool = False,
    ):
        self._table = table
        self._timeout = timeout  # sweeps this far apart; also check times: the clock counts
        self._loses = loses  # no answer will come; also check which tags end for that
        self._headers = headers  # every request needs as many; otherwise the solver chooses
        super().__init__(table.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.table = table = self._table
        connect(m, table.allocate, flipped(self.allocate))
        for name, member in table.signature.members.items():
            mine, its = getattr(self, name), getattr(table, name)
            if member.flow == Out or name in ("now", "period"):
                continue
            if member.is_signature:
                connect(m, flipped(mine), its)
            else:
                m.d.comb += its.eq(mine)
        allocated = Signal()
        m.submodules.rules = rules = StreamRules(table.allocate, role=Assert)
        m.d.comb += [
            allocated.eq(rules.transfer),
            Assume((self.headers >= 1) & (self.headers <= HEADERS)),
            *([] if self._headers is None else [Assume(self.headers == self._headers)]),
        ]
        self._keep_headers(m)
        self._keep_time(m)

        out = Signal(TAGS)
        closed = Signal(TAGS)
        banned = Signal(TAGS)
        in_use = 0
        held = 0
        for tag in range(TAGS):
            taken = Signal(name=f"taken_{tag}")
            closes = Signal(name=f"closes_{tag}")
            retires = Signal(name=f"retires_{tag}")
            size = Signal.like(self.headers, name=f"size_{tag}")
            age = Signal(4, name=f"age_{tag}")  # cycles since the tag was taken or banned
            m.d.comb += [
                taken.eq(allocated & (table.allocate.payload == tag)),
                closes.eq(self.close & (self.lookup == tag)),
                retires.eq(self.retire.valid & (self.retire.payload.tag == tag)),
                Assume(~closes | (out[tag] & ~closed[tag])),
                Assume(~retires | closed[tag]),
                Assert(~taken | ~out[tag]),
                Assert((self.lookup != tag) | (table.live == (out[tag] & ~closed[tag]))),
                Assert(
                    ~table.expire_valid
                    | (table.expire_tag != tag)
                    | (out[tag] & ~closed[tag])
                ),
            ]
            if self._timeout is not None:
                expires = table.expire_valid & (table.expire_tag == tag)
                sent = Signal(name=f"sent_{tag}")
                told = Signal(name=f"told_{tag}")  # the hard block waits for it no more
                stayed = Signal(name=f"stayed_{tag}")  # only that ends the quarantine
                least = PERIODS_LEAST * self._timeout
                m.d.comb += [
                    Assert(~taken | ~banned[tag] | told | (age >= least)),
                    Assert(~taken | ~banned[tag] | told | ~stayed),
                    Assert(~expires | (age >= least)),
                    Assert(~expires | (sent & ~self.patient)),
                ]
                with m.If(taken):
                    m.d.sync += told.eq(0)
                with m.Elif(self.completed & (self.lookup == tag)):
                    m.d.sync += told.eq(1)
                m.d.sync += stayed.eq(self.tracks & self.stays & (stayed | retires))
                with m.If(taken):
                    m.d.sync += sent.eq(0)
                with m.Elif(self.sent.valid & (self.sent.payload[:1] == tag)):
                    m.d.sync += sent.eq(1)
            if self._loses:
                given = Signal(name=f"given_{tag}")
                sends = self.sent.valid & (self.sent.payload[:1] == tag)
                m.d.comb += [
                    Assume(~sends | given),
                    Assert(~table.expire_valid | (table.expire_tag != tag) | given),
                ]
                with m.If(taken):
                    m.d.sync += given.eq(0)
                with m.Elif(self.given.valid & (self.given.payload[:1] == tag)):
                    m.d.sync += given.eq(1)
            with m.If(~age.all()):
                m.d.sync += age.eq(age + 1)
            with m.If(taken):
                m.d.sync += [
                    out[tag].eq(1),
                    closed[tag].eq(0),
                    banned[tag].eq(0),
                    size.eq(self.headers),
                    age.eq(0),
                ]
            with m.If(closes):
                m.d.sync += closed[tag].eq(1)
            with m.If(retires):
                m.d.sync += [
                    out[tag].eq(0),
                    closed[tag].eq(0),
                    banned[tag].eq(self.retire.payload.quarantine),
                    age.eq(0),
                ]
            in_use += Mux(out[tag], size, 0)
            held += out[tag]
        m.d.comb += [
            Assert(in_use <= HEADERS),
            Assert(held <= table.held),
            Assert(table.held <= TAGS),
        ]

        # With every tag given back, the next request is served: nothing was lost.
        calm = Signal(range(SETTLING + 1))
        with m.If((out | banned).any()):
            m.d.sync += calm.eq(0)
        with m.Elif(calm != SETTLING):
            m.d.sync += calm.eq(calm + 1)
        with m.If((calm == SETTLING) & ~(out | banned).any()):
            m.d.comb += [Assert(table.allocate.valid), Assert(table.held == 0)]
        return m

    def _keep_headers(self, m: Module) -> None:
        """``headers`` holds while a tag is wanted."""
        before = Signal.like(self.headers)
        wanted = Signal()
        m.d.sync += [
            before.eq(self.headers),
            wanted.eq(self._table.allocate.valid & ~self.allocate.ready),
        ]
        m.d.comb += Assume(~wanted | (self.headers == before))

    def _keep_time(self, m: Module) -> None:
        """Time counts cycles, or jumps to and fro as the solver likes, so a sweep may come at any
        time."""
        m.d.comb += self._table.period.eq(self._timeout or LONG_TIMEOUT)
        if self._loses:
            m.d.comb += Assume(self.lost)
        if self._timeout is None:
            m.d.comb += self._table.now.eq(self.now[-1] << (TIME_BITS - 1))
            return
        m.d.comb += Assume(~self.lost)
        clock = Signal(TIME_BITS)
        m.d.sync += clock.eq(clock + 1)
        m.d.comb += self._table.now.eq(clock)


class Mutant(TagTable):
    """A tag table around which ``rewire(m, outer, inner)`` crosses some wires."""

    def __init__(self, *, rewire: Callable):
        super().__init__(config=CONFIG)
        self._inner = TagTable(config=CONFIG)
        self._rewire = rewire

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        for name, member in self.signature.members.items():
            mine, its = getattr(self, name), getattr(inner, name)
            if member.is_signature and member.flow == In:
                connect(m, flipped(mine), its)
            elif member.is_signature:
                connect(m, its, flipped(mine))
            else:
                m.d.comb += its.eq(mine) if member.flow == In else mine.eq(its)
        self._rewire(m, self, inner)
        return m


def no_quarantine(m, outer, inner):
    """Tags come back at once although completions may still arrive."""
    m.d.comb += inner.retire.payload.quarantine.eq(0)


def retired_at_close(m, outer, inner):
    """Tags come back before their last byte has landed."""
    m.d.comb += [
        inner.retire.valid.eq(outer.close),
        inner.retire.payload.tag.eq(outer.lookup),
        inner.retire.payload.quarantine.eq(0),
    ]


def block_forgotten(m, outer, inner):
    """The table of the hard block does not count."""
    m.d.comb += inner.tracks.eq(0)


def headers_forgotten(m, outer, inner):
    """Room for completions is not reserved."""
    m.d.comb += inner.headers.eq(1)


def never_closed(m, outer, inner):
    """Completions are accepted after the last one."""
    m.d.comb += inner.close.eq(0)


def lost_retirement(m, outer, inner):
    """Tag 1 never comes back."""
    m.d.comb += inner.retire.valid.eq(outer.retire.valid & (outer.retire.payload.tag == 0))


def hasty_clock(m, outer, inner):
    """Timeouts come four times too early."""
    m.d.comb += inner.now.eq(outer.now << 2)


def unsent_ages(m, outer, inner):
    """A request that has not left times out."""
    m.d.comb += [inner.sent.valid.eq(1), inner.sent.payload.eq(0)]


def lost_unsent(m, outer, inner):
    """A request that can still be dropped ends with those that have no answer."""
    m.d.comb += [inner.given.valid.eq(1), inner.given.payload.eq(0)]


def impatient(m, outer, inner):
    """Reads time out although that is disabled."""
    m.d.comb += inner.patient.eq(0)


def _mutant(rewire: Callable, **more) -> TagSpecification:
    return TagSpecification(Mutant(rewire=rewire), **more)


PROOFS = [
    Proof(
        name="tags",
        build=lambda: TagSpecification(TagTable(config=CONFIG), headers=1),
        mode="prove",
        depth=16,
        mutants=[
            lambda: _mutant(retired_at_close, headers=1),
            lambda: _mutant(never_closed, headers=1),
            lambda: _mutant(lost_retirement, headers=1),
        ],
    ),
    Proof(
        name="tag_headers",
        build=lambda: TagSpecification(TagTable(config=CONFIG), headers=MORE_THAN_HALF),
        depth=14,
        mutants=[lambda: _mutant(headers_forgotten, headers=MORE_THAN_HALF)],
    ),
    Proof(
        name="tag_losses",
        build=lambda: TagSpecification(TagTable(config=CONFIG), headers=1, loses=True),
        mode="bmc",
        depth=16,
        mutants=[lambda: _mutant(lost_unsent, headers=1, loses=True)],
    ),
    Proof(
        name="tag_times",
        build=lambda: TagSpecification(
            TagTable(config=CONFIG), timeout=SHORT_TIMEOUT, headers=1
        ),
        mode="bmc",
        depth=34,
        slow=True,
        mutants=[
            lambda: _mutant(no_quarantine, timeout=SHORT_TIMEOUT, headers=1),
            lambda: _mutant(block_forgotten, timeout=SHORT_TIMEOUT, headers=1),
            lambda: _mutant(hasty_clock, timeout=SHORT_TIMEOUT, headers=1),
            lambda: _mutant(unsent_ages, timeout=SHORT_TIMEOUT, headers=1),
            lambda: _mutant(impatient, timeout=SHORT_TIMEOUT, headers=1),
        ],
    ),
]
