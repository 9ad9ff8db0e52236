"""Command slots: which are free, and which command each one carries."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.memory.disjoint import DISJOINT
from hdl.nvme.codes import DATA_PATH_CODES, STATUS_BITS, status_field
from hdl.nvme.health import note
from hdl.nvme.interface import HostOpcode, completion
from hdl.nvme.records import assign, carried, finish, part_bits, rejected


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
        m.submodules.returned = returned = fifo.SyncFIFOBuffered(
            width=config.slot_bits, depth=config.commands
        )
        fresh = Signal(range(config.commands + 1))
        has_fresh = fresh != config.commands
        m.d.comb += [
            returned.w_data.eq(self.free.payload),
            returned.w_en.eq(self.free.valid),
            self.free.ready.eq(1),
            self.allocate.valid.eq(has_fresh | returned.r_rdy),
            self.allocate.payload.eq(Mux(has_fresh, fresh, returned.r_data)),
            returned.r_en.eq(self.allocate.ready & ~has_fresh),
            self.busy.eq(self.free.valid | ((returned.level != 0) & ~returned.r_rdy)),
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
    active
        A slot is in use.

    Rate: one end in 4 cycles and what ``note`` takes, ``completion`` before ``rejected``.
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
                "again": Out(stream.Signature(config.slot_bits)),
                "stop": In(1),
                "active": Out(1),
                "busy": Out(1),
            }
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
            attrs={"ram_style": "block"} | DISJOINT,
        )
        store, load = table.write_port(), table.read_port()
        slot = Signal(config.slot_bits)
        shrinks = Signal()
        m.submodules.parts = parts_table = memory.Memory(
            shape=self.store_parts.shape(), depth=config.commands, init=[]
        )
        store_parts, load_parts = parts_table.write_port(), parts_table.read_port()
        m.d.comb += [
            store.addr.eq(self.store_slot),
            store.en.eq(self.store),
            store.data.eq(self.store_command),
            store_parts.addr.eq(Mux(shrinks, slot, self.store_slot)),
            store_parts.data.eq(Mux(shrinks, load_parts.data - 1, self.store_parts)),
            store_parts.en.eq(self.store | shrinks),
            load_parts.addr.eq(slot),
        ]

        used = Signal(range(config.commands + 1))
        freed = Signal()
        m.d.sync += used.eq(used + self.store - freed)
        m.d.comb += self.active.eq(used != 0)

        status = Signal(STATUS_BITS)
        counts = Signal()
        mapped = Signal(STATUS_BITS)
        with m.Switch(self.completion.payload.status):
            for inner, code in DATA_PATH_CODES.items():
                with m.Case(inner):
                    m.d.comb += mapped.eq(status_field(code))

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

            with m.State("LOAD"):
                m.next = "JUDGE"

            with m.State("JUDGE"):
                m.next = "FINISH"
                with m.If((status != 0) & ~self.stop):
                    m.next = "NOTE"
                with m.Elif((load_parts.data != 0) & ~self.stop):
                    m.next = "SHRINK"

            with m.State("SHRINK"):
                m.d.comb += shrinks.eq(~self.store)
                with m.If(shrinks):
                    m.next = "REPEAT"

            with m.State("REPEAT"):
                m.d.comb += self.again.valid.eq(1)
                with m.If(self.again.ready):
                    m.next = "TAKE"

            with m.State("FINISH"):
                m.d.comb += self.finish.valid.eq(1)
                with m.If(self.finish.ready):
                    with m.If(status != 0):
                        leave()
                    with m.Else():
                        m.next = "NOTE"

            with m.State("NOTE"):
                m.d.comb += self.note.valid.eq(1)
                with m.If(self.note.ready):
                    with m.If(status != 0):
                        m.next = "FINISH"
                    with m.Else():
                        leave()

            m.d.comb += [
                load.addr.eq(slot),
                self.again.payload.eq(slot),
                free_list.free.payload.eq(slot),
                free_list.free.valid.eq(freed),
                *assign(
                    self.finish.payload,
                    queue=load.data.queue,
                    identifier=load.data.identifier,
                    status=status,
                    result=0,
                    post=1,
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
            waits = (
                (fsm.ongoing("TAKE") & ~self.completion.valid & ~self.rejected.valid)
                | (self.finish.valid & ~self.finish.ready)
                | (self.note.valid & ~self.note.ready)
                | (self.again.valid & ~self.again.ready)
            )
            m.d.comb += self.busy.eq(~waits | free_list.busy)
        return m
