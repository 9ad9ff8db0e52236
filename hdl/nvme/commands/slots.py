"""Command slots: which are free, and which command each one carries."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_command import HostOpcode, completion
from hdl.flow.reference import telling
from hdl.kit.disjoint import DISJOINT
from hdl.kit.queue import Queue
from hdl.nvme.codes import DATA_PATH_CODES, STATUS_BITS, StatusCode, status_field
from hdl.nvme.pages.health import note
from hdl.nvme.records import again, assign, carried, finish, part_bits, rejected, target


class SlotFreeList(wiring.Component):
    """Hands out command slots, first each once in order, then in the order of their return.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    allocate
        Free slots.
    free
        Slots given back; never refused.

    One slot a cycle each way; a slot given back can be had again 2 cycles later.
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
    store, store_slot, store_command, store_parts
        A pulse: what ``store_slot`` carries, before anything about the slot can end, and how many
        more commands of ``transfer_blocks`` it takes, each below the one before it.
    completion
        Ended commands from the data path. By then every transfer of the slot has been answered.
    rejected
        Commands that end before the data path, with their status field.
    finish
        The same for the queue engine.
    note
        Ended commands for the logs: failed ones before, others after ``finish``. Then the slot is
        free again.
    again
        Slots whose command goes on with its next part.
    stop
        The controller is being disabled: commands end with the part that is inside, and how they
        fail is not noted.
    abort, aborted, found
        A command that is to be aborted, and a pulse when every slot has been looked at or one has
        been ``found``: it has parts left, or `Prp` holds it back. It then ends with Command Abort
        Requested, and the Abort itself ends here, in ``finish`` right behind it (NVMe 1.4, 5.1.1);
        one that has found nothing does not. Not used without `Config.abort_commands`.
    cancel, cancelled, held
        The same of one slot, to `Prp`.
    active, caching
        A slot is in use; one is by a command whose writes may stay in volatile caches.
    freed, freed_slot
        A pulse: a slot is free again.
    tells
        With ``background``: whom the end of the command in ``freed_slot`` tells; goes with it into
        ``finish``.

    Rate: one end in 4 cycles and what ``note`` takes, ``completion`` before ``rejected``. To look
    for a command takes 4 cycles a slot, ends first.
    Back-pressure from ``finish`` and ``note``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "allocate": Out(stream.Signature(config.slot_bits)),
                "store": In(1),
                "store_slot": In(config.slot_bits),
                "store_command": In(carried(config)),
                "store_parts": In(part_bits(config)),
                "completion": In(stream.Signature(completion(config))),
                "rejected": In(stream.Signature(rejected(config))),
                "finish": Out(stream.Signature(finish(config))),
                "note": Out(stream.Signature(note(config))),
                "again": Out(stream.Signature(again(config))),
                "stop": In(1),
                "abort": In(stream.Signature(target(config))),
                "aborted": Out(1),
                "found": Out(1),
                "cancel": Out(stream.Signature(config.slot_bits)),
                "cancelled": In(1),
                "held": In(1),
                "active": Out(1),
                "caching": Out(1),
                "freed": Out(1),
                "freed_slot": Out(config.slot_bits),
                "busy": Out(1),
            }
            | ({"tells": In(telling(config))} if config.background else {})
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.free_list = free_list = SlotFreeList(config=config)
        wiring.connect(m, wiring.flipped(self.allocate), free_list.allocate)
        m.submodules.carried = table = memory.Memory(
            shape=carried(config),
            depth=config.commands,
            init=[],
            # Abort looks at slots whatever happens to them.
            attrs={"ram_style": "block"} | ({} if config.abort_commands else DISJOINT),
        )
        store, load = table.write_port(), table.read_port()
        slot = Signal(config.slot_bits)
        shrinks = Signal()
        # Parts left; not 0 only while the command is inside. An aborted one has none left, and the
        # identifier of the Abort that ends behind it.
        aborts = config.abort_commands
        left = data.StructLayout(
            {"parts": part_bits(config)} | ({"aborted": 1, "by": 16} if aborts else {})
        )
        # All parts that are left are dropped, because the command is aborted or has ended.
        drops, aborting = Signal(), Signal()
        cursor = Signal(config.slot_bits)
        m.submodules.parts = parts_table = memory.Memory(
            shape=left, depth=config.commands, init=[]
        )
        store_parts, load_parts = parts_table.write_port(), parts_table.read_port()
        m.d.comb += [
            store.addr.eq(self.store_slot),
            store.en.eq(self.store),
            store.data.eq(self.store_command),
            store_parts.addr.eq(Mux(self.store, self.store_slot, slot)),
            store_parts.data.parts.eq(load_parts.data.parts - 1),
            store_parts.en.eq(self.store | shrinks | drops),
            load_parts.addr.eq(slot),
        ]
        with m.If(self.store):
            m.d.comb += store_parts.data.parts.eq(self.store_parts)
        with m.Elif(drops):
            m.d.comb += store_parts.data.parts.eq(0)
        used = Signal(range(config.commands + 1))
        freed = Signal()
        m.d.sync += used.eq(used + self.store - freed)
        cached = Signal(range(config.commands + 1))
        comes = self.store & self.store_command.cached
        m.d.sync += cached.eq(cached + comes - (freed & load.data.cached))
        m.d.comb += [self.active.eq(used != 0), self.caching.eq(cached != 0)]

        status = Signal(STATUS_BITS)
        counts = Signal()
        mapped = Signal(STATUS_BITS)
        with m.Switch(self.completion.payload.status):
            for inner, code in DATA_PATH_CODES.items():
                with m.Case(inner):
                    m.d.comb += mapped.eq(status_field(code))

        # A slot that is free carries a command that has ended, and may be another's before that has
        # been looked at. One that is not free stays so while an Abort looks at it.
        inside, inside_there = Signal(config.commands), Signal()
        if aborts:
            with m.If(freed):
                m.d.sync += inside.bit_select(slot, 1).eq(0)
            with m.If(self.store):
                m.d.sync += inside.bit_select(self.store_slot, 1).eq(1)
            m.d.sync += inside_there.eq(inside.bit_select(slot, 1))

        aborted_status = status_field(StatusCode.ABORT_REQUESTED, more=False)
        wanted = Signal(target(config))
        seeking = Signal()
        # The Abort of the slot's command ends, not the command.
        behind = Signal()
        if aborts:
            m.d.comb += [
                store_parts.data.aborted.eq(aborting & ~self.store),
                store_parts.data.by.eq(wanted.by),
            ]

        # Write Zeroes is none of the host's writes in the SMART log.
        zeroes = load.data.opcode == HostOpcode.WRITE

        def leave():
            m.d.comb += freed.eq(1)
            m.next = "TAKE"

        with m.FSM(name="finish") as fsm:
            with m.State("TAKE"):
                m.d.comb += [
                    self.completion.ready.eq(1),
                    self.rejected.ready.eq(~self.completion.valid),
                ]
                m.d.sync += counts.eq(self.completion.valid)
                with m.If(self.completion.valid):
                    m.d.sync += [slot.eq(self.completion.payload.slot), status.eq(mapped)]
                    m.next = "LOAD"
                with m.Elif(self.rejected.valid):
                    m.d.sync += [
                        slot.eq(self.rejected.payload.slot),
                        status.eq(self.rejected.payload.status),
                    ]
                    m.next = "LOAD"
                if aborts:
                    with m.Elif(seeking):
                        m.d.sync += slot.eq(cursor)
                        m.next = "SEEK"
                    with m.Elif(self.abort.valid):
                        m.d.comb += self.abort.ready.eq(1)
                        m.d.sync += [wanted.eq(self.abort.payload), seeking.eq(1), cursor.eq(0)]

            with m.State("LOAD"):
                m.next = "JUDGE"

            with m.State("JUDGE"):
                m.next = "FINISH"
                with m.If((status != 0) & ~self.stop):
                    m.next = "NOTE"
                with m.Elif((load_parts.data.parts != 0) & ~self.stop):
                    m.next = "SHRINK"
                if aborts:
                    with m.If(load_parts.data.aborted):
                        m.d.sync += status.eq(aborted_status)
                        m.next = "NOTE"
                    with m.Elif((load_parts.data.parts != 0) & (self.stop | (status != 0))):
                        m.next = "FORGET"

            # A free slot has no parts left.
            if aborts:
                with m.State("FORGET"):
                    m.d.comb += drops.eq(1)
                    with m.If(~self.store):
                        m.next = "FINISH"
                        with m.If((status != 0) & ~self.stop):
                            m.next = "NOTE"

                with m.State("SEEK"):
                    m.next = "MATCH"

                with m.State("MATCH"):
                    m.next = "NEXT"
                    with m.If(
                        inside_there
                        & ~load_parts.data.aborted
                        & (load.data.queue == wanted.queue)
                        & (load.data.identifier == wanted.identifier)
                    ):
                        m.next = "CANCEL"
                        with m.If(load_parts.data.parts != 0):
                            m.next = "MARK"

                with m.State("CANCEL"):
                    m.d.comb += self.cancel.valid.eq(1)
                    with m.If(self.cancel.ready):
                        m.next = "CANCELLED"

                with m.State("CANCELLED"):
                    with m.If(self.cancelled):
                        m.next = "NEXT"
                        with m.If(self.held):
                            m.next = "MARK"

                with m.State("MARK"):
                    m.d.comb += [drops.eq(1), aborting.eq(1)]
                    with m.If(~self.store):
                        m.d.comb += [self.aborted.eq(1), self.found.eq(1)]
                        m.d.sync += seeking.eq(0)
                        m.next = "TAKE"

                with m.State("NEXT"):
                    m.d.sync += cursor.eq(cursor + 1)
                    m.next = "TAKE"
                    with m.If(cursor == config.commands - 1):
                        m.d.comb += self.aborted.eq(1)
                        m.d.sync += seeking.eq(0)

            with m.State("SHRINK"):
                m.d.comb += shrinks.eq(~self.store)
                if config.sector_emulation:
                    m.d.sync += self.again.payload.lowest.eq(load_parts.data.parts == 1)
                with m.If(shrinks):
                    m.next = "REPEAT"

            with m.State("REPEAT"):
                m.d.comb += self.again.valid.eq(1)
                with m.If(self.again.ready):
                    m.next = "TAKE"

            with m.State("FINISH"):
                m.d.comb += self.finish.valid.eq(1)
                leaves = status != 0
                if aborts:
                    leaves &= ~load_parts.data.aborted
                with m.If(self.finish.ready):
                    with m.If(leaves):
                        leave()
                    with m.Else():
                        m.next = "NOTE"
                    if aborts:
                        with m.If(load_parts.data.aborted):
                            m.next = "END_ABORT"

            if aborts:
                with m.State("END_ABORT"):
                    m.d.comb += [behind.eq(1), self.finish.valid.eq(1)]
                    with m.If(self.finish.ready):
                        leave()

            with m.State("NOTE"):
                m.d.comb += self.note.valid.eq(1)
                with m.If(self.note.ready):
                    with m.If(status != 0):
                        m.next = "FINISH"
                    with m.Else():
                        leave()

            ended_by = load_parts.data.by if aborts else Const(0)
            m.d.comb += [
                load.addr.eq(slot),
                self.cancel.payload.eq(slot),
                self.again.payload.slot.eq(slot),
                free_list.free.payload.eq(slot),
                free_list.free.valid.eq(freed),
                self.freed.eq(freed),
                self.freed_slot.eq(slot),
                *assign(
                    self.finish.payload,
                    queue=Mux(behind, 0, load.data.queue),
                    identifier=Mux(behind, ended_by, load.data.identifier),
                    status=Mux(behind, 0, status),
                    result=0,
                    post=1,
                    **({"tells": Mux(behind, 0, self.tells)} if config.background else {}),
                ),
                *assign(
                    self.note.payload,
                    queue=load.data.queue,
                    identifier=load.data.identifier,
                    status=status,
                    nsid=load.data.nsid,
                    block=load.data.block,
                    counts=counts & ~(zeroes & load.data.hostless),
                    opcode=load.data.opcode,
                    blocks=load.data.blocks,
                ),
            ]
            if config.sector_emulation:
                m.d.comb += self.note.payload.sectors.eq(load.data.sectors)
            waits = (
                (
                    fsm.ongoing("TAKE")
                    & ~(self.completion.valid | self.rejected.valid | seeking)
                    & ~(self.abort.valid if aborts else Const(0))
                )
                | (self.finish.valid & ~self.finish.ready)
                | (self.note.valid & ~self.note.ready)
                | (self.again.valid & ~self.again.ready)
            )
            m.d.comb += self.busy.eq(~waits | free_list.busy)
        return m
