"""Requests of blocks and lists on their way to the host, queued in each direction."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.host_memory import read_request, write_request
from hdl.kit.queue import Queue

REQUESTS = 8
"""Requests queued towards the host in each direction. A block takes up to two."""


class RequestQueues(wiring.Component):
    """Keeps requests until the host interface takes them.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    read
        A read.
    reads
        A pulse that queues ``read``, a cycle later, as what decides about it is long.
    read_room
        There is room for the two reads of a block.
    write
        A write.
    writes
        A pulse that queues ``write``.
    write_room
        There is room for the two writes of a block.
    read_request
        Reads that are queued.
    write_request
        Writes that are queued.
    busy
        Something moves without the host being waited for.
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
        m.submodules.reads = reads = Queue(read_request(config), REQUESTS)
        m.submodules.writes = writes = Queue(write_request(config), REQUESTS)
        sends_read = Signal()
        read_sent = Signal(read_request(config).size)
        m.d.sync += [sends_read.eq(self.reads), read_sent.eq(self.read)]
        connect(m, reads.output, flipped(self.read_request))
        connect(m, writes.output, flipped(self.write_request))
        m.d.comb += [
            reads.input.payload.eq(read_sent),
            reads.input.valid.eq(sends_read),
            writes.input.payload.eq(self.write),
            writes.input.valid.eq(self.writes),
            # Two for a block, one that is still on its way into the queue.
            self.read_room.eq(reads.level <= REQUESTS - 3),
            self.write_room.eq(writes.level <= REQUESTS - 2),
            self.busy.eq(
                sends_read | Cat(queue.busy for queue in (reads, writes)).any()
            ),
        ]
        return m
