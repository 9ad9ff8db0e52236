"""Requests of blocks and lists on their way to the host, queued in each direction."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_memory import read_request, write_request

REQUESTS = 8
"""Requests queued towards the host in each direction; a block takes up to two."""


def moves(queue: fifo.SyncFIFOBuffered, taken):
    """Whether ``queue`` changes by itself: an entry is on its way out, or is being taken."""
    return ((queue.level != 0) & ~queue.r_rdy) | (queue.r_rdy & taken)


class RequestQueues(wiring.Component):
    """Keeps requests until the host interface takes them.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    read, reads, write, writes
        A request, and a pulse that queues it.
    read_room, write_room
        There is room for the two requests of a block.
    read_request, write_request
        What is queued.

    What decides about a read is long: it is queued a cycle later.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "read": In(read_request(config)),
                "reads": In(1),
                "read_room": Out(1),
                "write": In(write_request(config)),
                "writes": In(1),
                "write_room": Out(1),
                "read_request": Out(stream.Signature(read_request(config))),
                "write_request": Out(stream.Signature(write_request(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.reads = reads = fifo.SyncFIFOBuffered(
            width=read_request(config).size, depth=REQUESTS
        )
        m.submodules.writes = writes = fifo.SyncFIFOBuffered(
            width=write_request(config).size, depth=REQUESTS
        )
        sends_read = Signal()
        read_sent = Signal(read_request(config).size)
        m.d.sync += [sends_read.eq(self.reads), read_sent.eq(self.read)]
        m.d.comb += [
            reads.w_data.eq(read_sent),
            reads.w_en.eq(sends_read),
            writes.w_data.eq(self.write),
            writes.w_en.eq(self.writes),
            self.read_request.valid.eq(reads.r_rdy),
            self.read_request.payload.eq(reads.r_data),
            reads.r_en.eq(self.read_request.ready),
            self.write_request.valid.eq(writes.r_rdy),
            self.write_request.payload.eq(writes.r_data),
            writes.r_en.eq(self.write_request.ready),
            # Two for a block, one that is still on its way into the queue.
            self.read_room.eq(reads.w_level <= REQUESTS - 3),
            self.write_room.eq(writes.w_level <= REQUESTS - 2),
            self.busy.eq(
                sends_read | Cat(moves(queue, queue.r_en) for queue in (reads, writes)).any()
            ),
        ]
        return m
