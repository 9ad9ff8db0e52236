"""Extents that wait for a row to retire: one queue a row slot, and one of those to try again."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.extent import extent
from hdl.flow.row import row_walk
from hdl.kit.queue import Queue
from hdl.kit.table import Table


def parked(config: Config) -> data.StructLayout:
    """The rest of an extent, whether its command continues a sequential stream, and the walk that
    it stands for, if it does."""
    return data.StructLayout({"extent": extent(config), "sequential": 1, **row_walk(config)})


class Parking(wiring.Component):
    """Keeps extents in the order in which they came, for each row slot that blocks them.

    ``clear``, ``park`` and ``release`` are strobes of one cycle each, at most one of them in a
    cycle. ``retry`` follows a release by 3 cycles and gives an extent every 3. It must be taken
    before new extents, so that nothing starves.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slot
        The row slot at hand. It must have held for a cycle before a strobe.
    extent
        The extent to park.
    clear
        Strobe: the row slot is new, and nothing waits for it.
    park
        Strobe, only while there is ``room``: the extent waits for the row slot.
    release
        Strobe: everything that waits for the row slot goes to the end of ``retry``.
    retry
        Extents to try again.
    room
        There is a place for an extent.
    busy
        Something changes by itself.
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

        # A queue of places each row slot; an extent, and the next place of its queue, each place.
        # Places never used yet are counted off. Those used come back through `unused`.
        place = bits_for_count(config.commands)
        queue = data.StructLayout({"any": 1, "head": place, "tail": place})
        self._extents = Table(parked(config), config.commands)
        self._links = Table(place, config.commands)
        self._queues = Table(queue, config.rows)
        self._unused = Queue(place, config.commands)
        self._waiting = self._queues.reads[0].data
        self._fresh = Signal(range(config.commands + 1))
        self._counting = self._fresh != config.commands
        self._free_place = Signal(place)
        self._retry = Signal(queue)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.extents = self._extents
        m.submodules.links = self._links
        m.submodules.queues = self._queues
        m.submodules.unused = unused = self._unused
        fresh, counting, retry = self._fresh, self._counting, self._retry
        m.d.comb += [
            self.room.eq(counting | unused.output.valid),
            self._free_place.eq(Mux(counting, fresh, unused.output.payload)),
            self._queues.reads[0].address.eq(self.slot),
            self._queues.write.address.eq(self.slot),
            self._extents.write.address.eq(self._free_place),
            self._extents.write.data.eq(self.extent),
            self._extents.reads[0].address.eq(retry.head),
            self._links.reads[0].address.eq(retry.head),
            unused.input.payload.eq(retry.head),
            self.retry.payload.eq(self._extents.reads[0].data),
        ]
        with m.If(self.clear):
            m.d.comb += self._queues.store()
        self._park(m)
        self._release(m)
        m.d.comb += self.busy.eq(self._offer(m))
        return m

    def _park(self, m: Module) -> None:
        """The extent is the last that waits for the row slot."""
        waiting, free_place, links = self._waiting, self._free_place, self._links
        with m.If(self.park):
            m.d.comb += self._extents.store()
            m.d.comb += self._queues.store(
                any=1, head=Mux(waiting.any, waiting.head, free_place), tail=free_place
            )
            m.d.comb += [
                self._unused.output.ready.eq(~self._counting),
                links.write.address.eq(waiting.tail),
                links.write.data.eq(free_place),
                links.write.enable.eq(waiting.any),
            ]
            with m.If(self._counting):
                m.d.sync += self._fresh.eq(self._fresh + 1)

    def _release(self, m: Module) -> None:
        """The queue of the row slot goes to the end of those to try again."""
        waiting, retry, links = self._waiting, self._retry, self._links
        with m.If(self.release & waiting.any):
            m.d.comb += [
                links.write.address.eq(retry.tail),
                links.write.data.eq(waiting.head),
                links.write.enable.eq(retry.any),
            ]
            m.d.sync += [retry.any.eq(1), retry.tail.eq(waiting.tail)]
            with m.If(~retry.any):
                m.d.sync += retry.head.eq(waiting.head)

    def _offer(self, m: Module) -> Value:
        """Offers what is to be tried again. Returns whether something changes by itself."""
        waiting, retry = self._waiting, self._retry
        with m.FSM(name="retry") as fsm:
            with m.State("WAIT"):
                with m.If(retry.any):
                    m.next = "READ"
            with m.State("READ"):
                m.next = "OFFER"
            with m.State("OFFER"):
                m.d.comb += self.retry.valid.eq(1)
                with m.If(self.retry.ready):
                    m.d.comb += self._unused.input.valid.eq(1)
                    m.next = "ADVANCE"
            with m.State("ADVANCE"):
                # Nothing is offered here, and nothing is released while the gatherer has an extent,
                # so the link that a release writes is never the one being read.
                m.next = "WAIT"
                with m.If(retry.head == retry.tail):
                    m.d.sync += retry.any.eq(self.release & waiting.any)
                    with m.If(self.release & waiting.any):
                        m.d.sync += retry.head.eq(waiting.head)
                with m.Else():
                    m.d.sync += retry.head.eq(self._links.reads[0].data)
        return ~(fsm.ongoing("WAIT") & ~retry.any) & ~fsm.ongoing("OFFER")
