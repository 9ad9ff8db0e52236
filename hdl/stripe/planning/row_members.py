"""Where the roles of a row lie, and which of their drives are left."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from hdl.config import Config
from hdl.kit.bits import lowest_bit
from hdl.stripe.planning.duplicate import Duplicate
from hdl.stripe.planning.program import copy_target, target, target_bits


class RowMembers:
    """Part of `hdl.stripe.planning.admission.Admission`: looks up the members of a row, one a cycle

    Says in ``todo`` which roles are ``dead``, ``bad`` or ``stale`` and, of mirrors, which targets
    can be written, and writes every target to its table.

    Parameters
    ----------
    config
        Sizes.
    row, geometry, todo
        What the gatherer says of the row, its array, and its program.
    walks, mirrored, fills
        The row is walked; is of mirrors, and not walked; is to be filled.

    Attributes
    ----------
    roles
        How many there are.
    unsynced
        The row may not satisfy its equations, unless the host has written it; holds from a few
        cycles after the row is at hand.
    copies, copied
        With ``background``: a member of the row is copied, and the target that its block goes to.
    """

    def __init__(
        self,
        *,
        config: Config,
        row: Any,
        geometry: Any,
        todo: Any,
        walks: Value,
        mirrored: Value,
        fills: Value,
    ):
        self._config, self._row, self._geometry, self._todo = config, row, geometry, todo
        self._mirrored, self._fills = mirrored, fills
        # A walk without parity is about one strip: its row slot keeps others from no more.
        self.roles = Mux(walks & (geometry.parities == 0), geometry.copies, geometry.width)
        # `ask` is a lookup, answered in the next cycle. `strips` are those after `strip`; what
        # `following` says of them is a cycle old.
        self._strips = Signal(config.ports, name="strips")
        self._following = Signal(range(config.ports), name="following")
        self._strip = Signal(range(config.ports), name="strip")
        self._place = Signal(7, name="place")
        self._wrapped = Signal(name="wrapped")
        self._copy = Signal(6, name="copy")
        self._role = Signal(6, name="role")
        self._ask = Signal(name="ask")
        self._number = Signal(target_bits(config), name="number")
        self.unsynced = Signal(name="unsynced")
        self.copies = Signal(name="copies")
        self.copied = Signal(target(config), name="copied")

    def take_answers(self, m: Module, *, ports: Any, slot: Signal, target_write: Any) -> None:
        """What the tables answer. ``ports``: those of the admission, ``slot``: the row slot,
        ``target_write``: a write port of the targets."""
        config, row, todo = self._config, self._row, self._todo
        mirrored, fills = self._mirrored, self._fills
        strip, place, wrapped = self._strip, self._place, self._wrapped
        role, number, ask = self._role, self._number, self._ask
        copies, copied = self.copies, self.copied
        lowest = lowest_bit(m, self._strips, "lowest")
        m.d.sync += self._following.eq(lowest)
        got = Signal()
        got_role = Signal(5)
        got_wrapped = Signal()
        port = ports.member_read.data
        gone = ports.failed.bit_select(port, 1)
        if config.background:
            open_array = ports.unsynced.bit_select(row.array, 1)
            m.d.comb += ports.sync_read.address.eq(row.array)
            doubted = ports.doubts.bit_select(row.array, 1)
            m.d.sync += self.unsynced.eq(
                (open_array & (row.row >= ports.sync_read.data)) | doubted
            )
            beyond = Signal()
            m.submodules.duplicate = duplicate = Duplicate(config=config)
            m.d.comb += [
                ports.boundary_read.address.eq(row.array),
                ports.copy_read.address.eq(row.array),
                duplicate.entry.eq(ports.copy_read.data),
                duplicate.position.eq(ports.member_read.address.position),
                duplicate.member.eq(ports.member_read.data),
                duplicate.failed.eq(ports.failed),
                duplicate.stale.eq(ports.stale),
                duplicate.beyond.eq(beyond),
            ]
            m.d.sync += beyond.eq(row.row >= ports.boundary_read.data)
            port, gone, stale = duplicate.port, duplicate.gone, duplicate.distrusted
            # The target that is copied, without mirroring its role, and where its block lies.
            with m.If(got & duplicate.copied):
                m.d.sync += [
                    copies.eq(1),
                    todo.copied.eq(Mux(mirrored, number, got_role)),
                    copied.port.eq(duplicate.entry.port),
                    copied.strip.eq(got_role),
                    copied.wrapped.eq(got_wrapped),
                ]
        else:
            m.d.comb += self.unsynced.eq(~self._geometry.assumed)
        m.d.comb += [
            ports.member_read.address.array.eq(row.array),
            ports.member_read.address.position.eq(row.base + place),
            target_write.addr.eq(Cat(number, slot)),
            target_write.data.port.eq(port),
            target_write.data.strip.eq(got_role),
            target_write.data.wrapped.eq(got_wrapped),
        ]
        m.d.sync += [
            got.eq(ask),
            got_role.eq(Mux(mirrored, strip, role)),
            got_wrapped.eq(wrapped),
        ]
        with m.If(got):
            m.d.comb += target_write.en.eq(1)
            if config.background:
                to_copy = 1 << copy_target(config)
                m.d.sync += todo.synced.eq(
                    todo.synced
                    | Mux(~gone & ~stale, 1 << number, 0)
                    | Mux(duplicate.copied & ~beyond, to_copy, 0)
                )
            with m.If(mirrored):
                with m.If(~gone):
                    m.d.sync += todo.write.eq(todo.write | (1 << number))
                with m.If(~gone | fills):
                    m.d.sync += number.eq(number + 1)
                if config.background:
                    # To fill a block is to read it; else all live copies are only written.
                    with m.If(fills & stale):
                        m.d.sync += todo.bad.eq(todo.bad | (1 << number))
            with m.Else():
                m.d.sync += number.eq(number + 1)
                with m.If(gone):
                    m.d.sync += todo.dead.eq(todo.dead | (1 << got_role))
                if config.background:
                    with m.If(stale & ~gone):
                        m.d.sync += [
                            todo.bad.eq(todo.bad | (1 << got_role)),
                            todo.stale.eq(todo.stale | (1 << got_role)),
                        ]

    def begin(self, m: Module) -> None:
        """A new row is at hand."""
        m.d.sync += [
            self._strips.eq(self._row.joined),
            self._role.eq(0),
            self._copy.eq(0),
            self._wrapped.eq(0),
            self._number.eq(0),
        ]

    def locate(self, m: Module) -> None:
        """Its geometry is there: goes on to the lookups, and then to the state PLAN."""
        m.d.sync += [self._wrapped.eq(0), self._place.eq(self._row.shift)]
        if self._config.background:
            m.d.sync += self.copies.eq(0)
        m.next = "WALK"
        with m.If(self._mirrored):
            m.next = "STEP"

    def states(self, m: Module) -> None:
        """The states WALK, over the copies of a strip or the roles, STEP to the next strip, and
        SETTLE."""
        geometry, row, mirrored = self._geometry, self._row, self._mirrored
        place, copy, role, strips = self._place, self._copy, self._role, self._strips
        wrapped, following = self._wrapped, self._following
        with m.State("WALK"):
            m.d.comb += self._ask.eq(1)
            m.d.sync += [copy.eq(copy + 1), role.eq(role + 1)]
            with m.If(place + 1 >= geometry.width):
                m.d.sync += [place.eq(0), wrapped.eq(geometry.copies > 1)]
            with m.Else():
                m.d.sync += place.eq(place + 1)
            with m.If(mirrored):
                with m.If(copy + 1 == geometry.copies):
                    m.d.sync += copy.eq(0)
                    m.next = "STEP"
            with m.Elif(role + 1 == self.roles):
                m.next = "SETTLE"
        with m.State("STEP"):
            # The walk of a strip takes two copies at least: `following` holds again by then.
            m.d.sync += [
                wrapped.eq(0),
                self._strip.eq(following),
                strips.eq(strips & (strips - 1)),
                place.eq(row.shift + following * geometry.copies),
            ]
            m.next = "WALK"
            with m.If(strips == 0):
                m.next = "SETTLE"
            if self._config.background:
                # The gatherer makes such rows of one strip.
                with m.Else():
                    m.d.sync += self._todo.place.eq(row.shift + following * geometry.copies)
        with m.State("SETTLE"):
            # The last answer is being taken.
            m.next = "PLAN"
