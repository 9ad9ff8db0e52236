"""Command slots: which are free, and which command each one carries."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.codes import DATA_PATH_CODES, STATUS_BITS, status_field
from hdl.nvme.interface import completion
from hdl.nvme.records import assign, finish, queue_bits, rejected


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
    store, store_slot, store_queue, store_identifier
        A pulse: what ``store_slot`` carries, before anything about the slot can end.
    completion
        Ended commands from the data path. By then every transfer of the slot has been answered.
    rejected
        Commands that end before the data path, with their status field.
    finish
        The same for the queue engine; the slot is free again once it has been taken.

    Rate: one end in 3 cycles, ``completion`` before ``rejected``. Back-pressure from ``finish``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "allocate": Out(stream.Signature(config.slot_bits)),
                "store": In(1),
                "store_slot": In(config.slot_bits),
                "store_queue": In(queue_bits(config)),
                "store_identifier": In(16),
                "completion": In(stream.Signature(completion(config))),
                "rejected": In(stream.Signature(rejected(config))),
                "finish": Out(stream.Signature(finish(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.free_list = free_list = SlotFreeList(config=config)
        wiring.connect(m, wiring.flipped(self.allocate), free_list.allocate)
        carried = data.StructLayout({"queue": queue_bits(config), "identifier": 16})
        m.submodules.carried = table = memory.Memory(shape=carried, depth=config.commands, init=[])
        store, load = table.write_port(), table.read_port()
        m.d.comb += [
            store.addr.eq(self.store_slot),
            store.en.eq(self.store),
            *assign(store.data, queue=self.store_queue, identifier=self.store_identifier),
        ]

        slot = Signal(config.slot_bits)
        status = Signal(STATUS_BITS)
        mapped = Signal(STATUS_BITS)
        with m.Switch(self.completion.payload.status):
            for inner, code in DATA_PATH_CODES.items():
                with m.Case(inner):
                    m.d.comb += mapped.eq(status_field(code))

        with m.FSM(name="finish") as fsm:
            with m.State("TAKE"):
                m.d.comb += [
                    self.completion.ready.eq(1),
                    self.rejected.ready.eq(~self.completion.valid),
                ]
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
                m.next = "FINISH"

            with m.State("FINISH"):
                m.d.comb += [
                    self.finish.valid.eq(1),
                    *assign(
                        self.finish.payload,
                        queue=load.data.queue,
                        identifier=load.data.identifier,
                        status=status,
                        result=0,
                        post=1,
                    ),
                ]
                with m.If(self.finish.ready):
                    m.d.comb += free_list.free.valid.eq(1)
                    m.next = "TAKE"

            m.d.comb += [load.addr.eq(slot), free_list.free.payload.eq(slot)]
            waits = (fsm.ongoing("TAKE") & ~self.completion.valid & ~self.rejected.valid) | (
                fsm.ongoing("FINISH") & ~self.finish.ready
            )
            m.d.comb += self.busy.eq(~waits | free_list.busy)
        return m
