"""Command slots: which are free, and which command each one carries."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.host_command import HostOpcode, completion
from hdl.flow.reference import telling
from hdl.kit.disjoint import DISJOINT
from hdl.kit.optional import optional
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table
from hdl.nvme.codes import DATA_PATH_CODES, STATUS_BITS, StatusCode, status_field
from hdl.nvme.pages.health import note
from hdl.nvme.records import (
    AbortAccess,
    again,
    assign,
    carried,
    finish,
    part_bits,
    rejected,
    stored,
    target,
)

ABORTED_STATUS = status_field(StatusCode.ABORT_REQUESTED, more=False)
"""Of a command that an Abort has found."""


def parts_left(config: Config) -> data.StructLayout:
    """What is left of the command in a slot.

    ``parts`` is not 0 only while the command is inside. A command that is ``aborted`` has no parts
    left, and the Abort with identifier ``by`` ends behind it. Without `Config.abort_commands`
    ``aborted`` and ``by`` read as 0.
    """
    return data.StructLayout(
        {"parts": part_bits(config)} | optional(config.abort_commands, {"aborted": 1, "by": 16})
    )


class SlotFreeList(wiring.Component):
    """Hands out command slots. Each goes out once in order, then in the order of their return.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    allocate
        Free slots.
    free
        Slots that are given back. They are never refused.
    busy
        A slot is on its way back.

    Throughput: one slot a cycle each way. A slot that is given back can be had again 2 cycles
    later.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "allocate": Out(stream.Signature(config.slot_bits)),
                "free": In(stream.Signature(config.slot_bits)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.returned = returned = Queue(config.slot_bits, config.commands)
        fresh = Signal(range(config.commands + 1))
        has_fresh = fresh != config.commands
        m.d.comb += [
            returned.input.payload.eq(self.free.payload),
            returned.input.valid.eq(self.free.valid),
            self.free.ready.eq(1),
            self.allocate.valid.eq(has_fresh | returned.output.valid),
            self.allocate.payload.eq(Mux(has_fresh, fresh, returned.output.payload)),
            returned.output.ready.eq(self.allocate.ready & ~has_fresh),
            self.busy.eq(self.free.valid | returned.filling),
        ]
        with m.If(self.allocate.ready & has_fresh):
            m.d.sync += fresh.eq(fresh + 1)
        return m


class SlotTable(wiring.Component):
    """Slots, the command that each carries, and the way from a slot's end to its queue.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    allocate
        Free slots.
    store
        A command gets a slot. It comes before anything about the slot can end.
    completion
        Ended commands from the data path. By then every transfer of the slot has been answered.
    rejected
        Commands that end before the data path, with their status field.
    finish
        Ended commands for the queue engine.
    note
        Ended commands for the logs. Those that failed come before ``finish``, others after it.
        Then the slot is free again.
    again
        Slots whose command goes on with its next part.
    stop
        The controller is being disabled. Commands end with the part that is inside, and it is not
        noted how they fail.
    abort_access
        Commands that are to be aborted. Not used without `Config.abort_commands`.
    cancel
        A slot whose command `Prp` is to hold back, if it can.
    cancelled
        `Prp` has looked. It is 1 if `Prp` holds the command back.
    active
        A slot is in use.
    caching
        A slot is in use by a command whose writes may stay in volatile caches.
    cached
        With ``finish``, the slot of a write that ends with success, and that may have left data in
        volatile caches.
    freed
        The slot whose command ends is free again. The payload is there with ``finish``, too.
    tells
        Whom the end of the command in the slot ``freed`` tells. It goes into ``finish``.
        Not used without `Config.background`.
    busy
        Something moves without anybody else being waited for.

    Rate: one end in 4 cycles and what ``note`` takes, ``completion`` before ``rejected``. To look
    for a command takes 4 cycles a slot. Ends go first.
    Back-pressure from ``finish`` and ``note``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "allocate": Out(stream.Signature(config.slot_bits)),
                "store": In(Pulse(stored(config))),
                "completion": In(stream.Signature(completion(config))),
                "rejected": In(stream.Signature(rejected(config))),
                "finish": Out(stream.Signature(finish(config))),
                "note": Out(stream.Signature(note(config))),
                "again": Out(stream.Signature(again(config))),
                "stop": In(1),
                "abort_access": In(AbortAccess(config)),
                "cancel": Out(stream.Signature(config.slot_bits)),
                "cancelled": In(Pulse(1)),
                "active": Out(1),
                "caching": Out(1),
                "cached": Out(Pulse(config.slot_bits)),
                "freed": Out(Pulse(config.slot_bits)),
                "tells": In(telling(config)),
                "busy": Out(1),
            }
        )

        self._free_list = SlotFreeList(config=config)
        # Abort looks at slots whatever happens to them.
        disjoint = {} if config.abort_commands else DISJOINT
        self._carried_table = Table(
            carried(config), config.commands, attrs={"ram_style": "block"} | disjoint
        )
        self._parts_table = Table(parts_left(config), config.commands)

        # The slot at hand, and a cycle later its command and what is left of it.
        self._slot = Signal(config.slot_bits)
        self._carried = self._carried_table.reads[0].data
        self._left = self._parts_table.reads[0].data
        self._status = Signal(STATUS_BITS)
        self._completed = Signal(STATUS_BITS)  # of the completion that is offered
        self._counts = Signal()  # it comes from the data path
        self._shrinks = Signal()  # one of its parts begins
        # All parts that are left are dropped: the command is aborted, or it has ended.
        self._drops = Signal()
        self._aborting = Signal()

        # The command that an Abort looks for, and the next slot that is looked at.
        self._wanted = Signal(target(config))
        self._seeking = Signal()
        self._cursor = Signal(config.slot_bits)
        self._inside = Signal(config.commands)  # a bit a slot
        self._inside_there = Signal()  # that of the slot at hand, a cycle later
        self._ends_abort = Signal()  # the Abort of the slot's command ends, not the command

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.free_list = self._free_list
        m.submodules.carried = self._carried_table
        m.submodules.parts = self._parts_table
        self._connect_tables(m)
        self._count_commands(m)
        self._translate_status(m)
        self._describe_end(m)
        aborts = self._config.abort_commands
        if aborts:
            self._follow_slots(m)
        with m.FSM(name="finish") as fsm:
            self._take(m)
            self._judge(m)
            if aborts:
                self._forget(m)
                self._seek(m)
                self._cancel(m)
                self._mark(m)
            self._repeat(m)
            self._finish(m)
            self._note(m)
            waits = (
                (
                    fsm.ongoing("TAKE")
                    & ~(self.completion.valid | self.rejected.valid | self._seeking)
                    & ~self.abort_access.command.valid
                )
                | (self.finish.valid & ~self.finish.ready)
                | (self.note.valid & ~self.note.ready)
                | (self.again.valid & ~self.again.ready)
            )
        m.d.comb += self.busy.eq(~waits | self._free_list.busy)
        return m

    def _connect_tables(self, m: Module) -> None:
        """Slots that are handed out and come back, and what is kept of each."""
        carried_table, parts_table = self._carried_table, self._parts_table
        slot, free = self._slot, self._free_list.free
        connect(m, flipped(self.allocate), self._free_list.allocate)
        m.d.comb += [
            carried_table.write.address.eq(self.store.payload.slot),
            carried_table.write.enable.eq(self.store.valid),
            carried_table.write.data.eq(self.store.payload.command),
            carried_table.reads[0].address.eq(slot),
            parts_table.write.address.eq(Mux(self.store.valid, self.store.payload.slot, slot)),
            parts_table.write.enable.eq(self.store.valid | self._shrinks | self._drops),
            parts_table.write.data.parts.eq(self._left.parts - 1),
            parts_table.write.data.aborted.eq(self._aborting & ~self.store.valid),
            parts_table.write.data.by.eq(self._wanted.by),
            parts_table.reads[0].address.eq(slot),
            free.payload.eq(slot),
            free.valid.eq(self.freed.valid),
            self.freed.payload.eq(slot),
            self.cached.payload.eq(slot),
            self.cancel.payload.eq(slot),
            self.again.payload.slot.eq(slot),
        ]
        with m.If(self.store.valid):
            m.d.comb += parts_table.write.data.parts.eq(self.store.payload.parts)
        with m.Elif(self._drops):
            m.d.comb += parts_table.write.data.parts.eq(0)

    def _count_commands(self, m: Module) -> None:
        """How many commands are inside, and how many of them may leave data in volatile caches."""
        commands = self._config.commands
        used = Signal(range(commands + 1))
        cached = Signal(range(commands + 1))
        begins = self.store.valid & self.store.payload.command.cached
        ends = self.freed.valid & self._carried.cached
        m.d.sync += [
            used.eq(used + self.store.valid - self.freed.valid),
            cached.eq(cached + begins - ends),
        ]
        m.d.comb += [self.active.eq(used != 0), self.caching.eq(cached != 0)]

    def _translate_status(self, m: Module) -> None:
        """The status field of a command that comes from the data path."""
        with m.Switch(self.completion.payload.status):
            for inner, code in DATA_PATH_CODES.items():
                with m.Case(inner):
                    m.d.comb += self._completed.eq(status_field(code))

    def _describe_end(self, m: Module) -> None:
        """How the command ends, for its queue and for the logs. Write Zeroes is none of the host's
        writes in the SMART log."""
        command, ends_abort = self._carried, self._ends_abort
        zeroes = (command.opcode == HostOpcode.WRITE) & command.hostless
        m.d.comb += [
            *assign(
                self.finish.payload,
                queue=Mux(ends_abort, 0, command.queue),
                identifier=Mux(ends_abort, self._left.by, command.identifier),
                status=Mux(ends_abort, 0, self._status),
                result=0,
                post=1,
                tells=Mux(ends_abort, 0, self.tells),
            ),
            *assign(
                self.note.payload,
                queue=command.queue,
                identifier=command.identifier,
                status=self._status,
                nsid=command.nsid,
                block=command.block,
                counts=self._counts & ~zeroes,
                opcode=command.opcode,
                blocks=command.blocks,
            ),
        ]
        if self._config.sector_emulation:
            m.d.comb += self.note.payload.sectors.eq(command.sectors)

    def _follow_slots(self, m: Module) -> None:
        """Which slots are in use.

        A slot that is free carries a command that has ended, and may be another's before that has
        been looked at. A slot that is not free stays so while an Abort looks at it.
        """
        with m.If(self.freed.valid):
            m.d.sync += self._inside.bit_select(self._slot, 1).eq(0)
        with m.If(self.store.valid):
            m.d.sync += self._inside.bit_select(self.store.payload.slot, 1).eq(1)
        m.d.sync += self._inside_there.eq(self._inside.bit_select(self._slot, 1))

    def _leave(self, m: Module) -> None:
        """Ends a state: the slot is free again."""
        m.d.comb += self.freed.valid.eq(1)
        m.next = "TAKE"

    def _take(self, m: Module) -> None:
        """The states TAKE, in which a command ends or is looked for, and LOAD."""
        with m.State("TAKE"):
            m.d.comb += [
                self.completion.ready.eq(1),
                self.rejected.ready.eq(~self.completion.valid),
            ]
            m.d.sync += self._counts.eq(self.completion.valid)
            with m.If(self.completion.valid):
                m.d.sync += [
                    self._slot.eq(self.completion.payload.slot),
                    self._status.eq(self._completed),
                ]
                m.next = "LOAD"
            with m.Elif(self.rejected.valid):
                m.d.sync += [
                    self._slot.eq(self.rejected.payload.slot),
                    self._status.eq(self.rejected.payload.status),
                ]
                m.next = "LOAD"
            if self._config.abort_commands:
                with m.Elif(self._seeking):
                    m.d.sync += self._slot.eq(self._cursor)
                    m.next = "SEEK"
                with m.Elif(self.abort_access.command.valid):
                    m.d.comb += self.abort_access.command.ready.eq(1)
                    m.d.sync += [
                        self._wanted.eq(self.abort_access.command.payload),
                        self._seeking.eq(1),
                        self._cursor.eq(0),
                    ]

        with m.State("LOAD"):
            m.next = "JUDGE"

    def _judge(self, m: Module) -> None:
        """The state JUDGE: the command ends, or goes on with its next part."""
        status, left = self._status, self._left
        with m.State("JUDGE"):
            m.next = "FINISH"
            with m.If((status != 0) & ~self.stop):
                m.next = "NOTE"
            with m.Elif((left.parts != 0) & ~self.stop):
                m.next = "SHRINK"
            if self._config.abort_commands:
                with m.If(left.aborted):
                    m.d.sync += status.eq(ABORTED_STATUS)
                    m.next = "NOTE"
                with m.Elif((left.parts != 0) & (self.stop | (status != 0))):
                    m.next = "FORGET"

    def _forget(self, m: Module) -> None:
        """The state FORGET: a command that ends has no parts left, so a free slot has none."""
        with m.State("FORGET"):
            m.d.comb += self._drops.eq(1)
            with m.If(~self.store.valid):
                m.next = "FINISH"
                with m.If((self._status != 0) & ~self.stop):
                    m.next = "NOTE"

    def _seek(self, m: Module) -> None:
        """The states SEEK and MATCH: whether the slot carries the command that is looked for."""
        command, wanted, left = self._carried, self._wanted, self._left
        with m.State("SEEK"):
            m.next = "MATCH"

        with m.State("MATCH"):
            m.next = "NEXT"
            with m.If(
                self._inside_there
                & ~left.aborted
                & (command.queue == wanted.queue)
                & (command.identifier == wanted.identifier)
            ):
                m.next = "CANCEL"
                with m.If(left.parts != 0):
                    m.next = "MARK"

    def _cancel(self, m: Module) -> None:
        """The states CANCEL and CANCELLED: `Prp` may hold the command back."""
        with m.State("CANCEL"):
            m.d.comb += self.cancel.valid.eq(1)
            with m.If(self.cancel.ready):
                m.next = "CANCELLED"

        with m.State("CANCELLED"):
            with m.If(self.cancelled.valid):
                m.next = "NEXT"
                with m.If(self.cancelled.payload):
                    m.next = "MARK"

    def _mark(self, m: Module) -> None:
        """The states MARK, of a command that is aborted, and NEXT, of a slot that has no such
        command."""
        with m.State("MARK"):
            m.d.comb += [self._drops.eq(1), self._aborting.eq(1)]
            with m.If(~self.store.valid):
                m.d.comb += [self.abort_access.tried.eq(1), self.abort_access.found.eq(1)]
                m.d.sync += self._seeking.eq(0)
                m.next = "TAKE"

        with m.State("NEXT"):
            m.d.sync += self._cursor.eq(self._cursor + 1)
            m.next = "TAKE"
            with m.If(self._cursor == self._config.commands - 1):
                m.d.comb += self.abort_access.tried.eq(1)
                m.d.sync += self._seeking.eq(0)

    def _repeat(self, m: Module) -> None:
        """The states SHRINK and REPEAT: the command goes on with its next part."""
        with m.State("SHRINK"):
            m.d.comb += self._shrinks.eq(~self.store.valid)
            m.d.sync += self.again.payload.lowest.eq(self._left.parts == 1)
            with m.If(self._shrinks):
                m.next = "REPEAT"

        with m.State("REPEAT"):
            m.d.comb += self.again.valid.eq(1)
            with m.If(self.again.ready):
                m.next = "TAKE"

    def _finish(self, m: Module) -> None:
        """The states FINISH and END_ABORT: the command ends, and the Abort that has found it."""
        with m.State("FINISH"):
            m.d.comb += self.finish.valid.eq(1)
            with m.If(self.finish.ready):
                with m.If((self._status != 0) & ~self._left.aborted):
                    self._leave(m)
                with m.Else():
                    m.d.comb += self.cached.valid.eq(self._carried.cached & (self._status == 0))
                    m.next = "NOTE"
                if self._config.abort_commands:
                    with m.If(self._left.aborted):
                        m.next = "END_ABORT"

        if self._config.abort_commands:
            with m.State("END_ABORT"):
                m.d.comb += [self._ends_abort.eq(1), self.finish.valid.eq(1)]
                with m.If(self.finish.ready):
                    self._leave(m)

    def _note(self, m: Module) -> None:
        """The state NOTE: the logs learn of the end. A command that failed ends afterwards."""
        with m.State("NOTE"):
            m.d.comb += self.note.valid.eq(1)
            with m.If(self.note.ready):
                with m.If(self._status != 0):
                    m.next = "FINISH"
                with m.Else():
                    self._leave(m)
