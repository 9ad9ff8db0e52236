"""Extents that wait for a row to retire: one queue a row slot, and one of those to try again."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.extent import extent
from hdl.flow.row import errand
from hdl.kit.queue import Queue


def parked(config: Config) -> data.StructLayout:
    """The rest of an extent, whether its command continues a sequential stream, and the walk that
    it stands for, if it does."""
    return data.StructLayout({"extent": extent(config), "sequential": 1, **errand(config)})


class Parking(wiring.Component):
    """Keeps extents in the order in which they came, for each row slot that blocks them.

    ``slot`` names the row slot; it must have held for a cycle before a strobe. ``clear``: a new
    row slot, nothing waits. ``park``: ``extent`` waits for ``slot``; only while ``room``.
    ``release``: all that waits for ``slot`` goes to the end of ``retry``. ``retry`` must be taken
    before new extents, so that nothing starves. Each strobe takes one cycle; at most one of them
    in a cycle. ``retry`` follows a release by 3 cycles and gives an extent every 3.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "slot": In(config.row_slot_bits),
                "extent": In(parked(config)),
                "clear": In(1),
                "park": In(1),
                "release": In(1),
                "retry": Out(stream.Signature(parked(config))),
                "room": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        places = config.commands
        place = bits_for_count(places)
        queue = data.StructLayout({"any": 1, "head": place, "tail": place})
        m.submodules.extents = extents = Memory(shape=parked(config), depth=places, init=[])
        m.submodules.links = links = Memory(shape=place, depth=places, init=[])
        m.submodules.queues = queues = Memory(shape=queue, depth=config.rows, init=[])
        m.submodules.unused = unused = Queue(place, places)
        extent_read, extent_write = extents.read_port(), extents.write_port()
        link_read, link_write = links.read_port(), links.write_port()
        queue_read, queue_write = queues.read_port(), queues.write_port()

        # Places never used yet are counted off; those used come back through `unused`.
        fresh = Signal(range(places + 1))
        retry = Signal(queue)
        free_place = Signal(place)
        m.d.comb += [
            self.room.eq((fresh != places) | unused.output.valid),
            free_place.eq(Mux(fresh != places, fresh, unused.output.payload)),
            queue_read.addr.eq(self.slot),
            queue_write.addr.eq(self.slot),
            extent_write.addr.eq(free_place),
            extent_write.data.eq(self.extent),
            extent_read.addr.eq(retry.head),
            link_read.addr.eq(retry.head),
            unused.input.payload.eq(retry.head),
            self.retry.payload.eq(extent_read.data),
        ]
        waiting = queue_read.data
        with m.If(self.clear):
            m.d.comb += queue_write.en.eq(1)
        with m.If(self.park):
            m.d.comb += [
                extent_write.en.eq(1),
                unused.output.ready.eq(fresh == places),
                link_write.addr.eq(waiting.tail),
                link_write.data.eq(free_place),
                link_write.en.eq(waiting.any),
                queue_write.en.eq(1),
                queue_write.data.any.eq(1),
                queue_write.data.head.eq(Mux(waiting.any, waiting.head, free_place)),
                queue_write.data.tail.eq(free_place),
            ]
            with m.If(fresh != places):
                m.d.sync += fresh.eq(fresh + 1)
        with m.If(self.release & waiting.any):
            m.d.comb += [
                link_write.addr.eq(retry.tail),
                link_write.data.eq(waiting.head),
                link_write.en.eq(retry.any),
            ]
            m.d.sync += [retry.any.eq(1), retry.tail.eq(waiting.tail)]
            with m.If(~retry.any):
                m.d.sync += retry.head.eq(waiting.head)

        with m.FSM(name="retry") as fsm:
            with m.State("WAIT"):
                with m.If(retry.any):
                    m.next = "READ"
            with m.State("READ"):
                m.next = "OFFER"
            with m.State("OFFER"):
                m.d.comb += self.retry.valid.eq(1)
                with m.If(self.retry.ready):
                    m.d.comb += unused.input.valid.eq(1)
                    m.next = "ADVANCE"
            with m.State("ADVANCE"):
                # Not offering here, and nothing is released while an extent is in hand, so the
                # link that a release writes is never the one being read.
                m.next = "WAIT"
                with m.If(retry.head == retry.tail):
                    m.d.sync += retry.any.eq(self.release & waiting.any)
                    with m.If(self.release & waiting.any):
                        m.d.sync += retry.head.eq(waiting.head)
                with m.Else():
                    m.d.sync += retry.head.eq(link_read.data)
        m.d.comb += self.busy.eq(
            ~(fsm.ongoing("WAIT") & ~retry.any) & ~fsm.ongoing("OFFER")
        )
        return m
