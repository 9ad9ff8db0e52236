"""How many submission queue entries are fetched by one read."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.queues import queue_state
from hdl.nvme.records import FETCH_ENTRIES, FETCHES, position_bits

ADMIN_FETCH = FETCHES
"""Transfer index of reads from the admin queue. Those below are `EntryRing`'s."""


class FetchPlan(wiring.Component):
    """Sizes a read so that it wraps neither in the queue nor in the inbox, and is of one age.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    sq
        State of the submission queue.
    cq
        State of its completion queue.
    sq_last
        Entries of the submission queue, minus 1.
    cq_last
        Entries of the completion queue, minus 1.
    admin
        It is the admin queue. Its entries are fetched one at a time, to a place of their own.
    room
        Entries of I/O queues that the inbox can take.
    empty
        The submission queue has no entry.
    full
        The completion queue has no room for an entry.
    count
        Entries to fetch. Meaningless when ``empty`` or ``full``.
    head
        The queue's head after them. Meaningless when ``empty`` or ``full``.

    Latency: 2 cycles from the inputs, which are constant meanwhile, to the outputs.
    """

    def __init__(self, *, config: Config):
        self._position = position = position_bits(config)
        super().__init__(
            {
                "sq": In(queue_state.sq_state(config)),
                "cq": In(queue_state.cq_state(config)),
                "sq_last": In(position),
                "cq_last": In(position),
                "admin": In(1),
                "room": In(range(FETCH_ENTRIES + 1)),
                "empty": Out(1),
                "full": Out(1),
                "count": Out(range(FETCH_ENTRIES + 1)),
                "head": Out(position),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        # Stage 1: the four limits.
        s1_available = Signal(self._position + 1)
        end = Signal(self._position)
        m.d.comb += end.eq(Mux(self.sq.marked, self.sq.mark, self.sq.tail))
        s1_cq_room = Signal(self._position + 1)
        s1_most = Signal.like(self.count)
        m.d.sync += [
            s1_available.eq(
                Mux(
                    end >= self.sq.head,
                    end - self.sq.head,
                    self.sq_last + 1 - self.sq.head,
                )
            ),
            s1_cq_room.eq(self.cq_last - self.cq.used),
            s1_most.eq(Mux(self.admin, 1, self.room)),
        ]
        # Stage 2: the least of them.
        nearest = Mux(s1_available < s1_cq_room, s1_available, s1_cq_room)
        m.d.sync += [
            self.empty.eq(s1_available == 0),
            self.full.eq(s1_cq_room == 0),
            self.count.eq(Mux(nearest < s1_most, nearest, s1_most)),
        ]
        after = Signal(self._position + 1)
        m.d.comb += [
            after.eq(self.sq.head + self.count),
            self.head.eq(Mux(after > self.sq_last, 0, after)),
        ]
        return m
