"""Rows in which a host's read came upon a block that its drive cannot read."""

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MENDED, MENDS, Config
from hdl.flow.walk import MEND_TAG, ROLE_BITS, MendRequest, WalkKind, walk
from hdl.kit.merge import Merge
from hdl.kit.queue import Queue


def row_place(config: Config) -> data.StructLayout:
    """Where a row lies, and its ``source`` and ``era``, as `hdl.flow.walk.walk` says."""
    return data.StructLayout(
        {
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "row": BLOCK_NUMBER_BITS,
            "source": ROLE_BITS,
            "era": ERA_BITS,
        }
    )


class Mends(wiring.Component):
    """Asks for a PATROL of a row, which writes the block anew, after the host's read has gone on.

    Parameters
    ----------
    config
        Sizes. Without ``background`` nothing is noted.

    Ports
    -----
    row
        Where the row of the read lies. As for any walk without parity, ``shift`` is that of the
        strip.
    note
        A pulse: the read has gone on to other drives. It is dropped while `MENDS` rows wait.
    mend
        The rows that have been noted.
    busy
        Such a row waits.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "row": In(row_place(config)),
                "note": In(1),
                "mend": Out(MendRequest(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        if not self._config.background:
            return m
        layout = walk(self._config)
        m.submodules.queue = queue = Queue(layout, MENDS)
        noted = queue.input.payload
        connect(m, queue.output, flipped(self.mend.walk))
        m.d.comb += [
            noted.kind.eq(WalkKind.PATROL),
            noted.array.eq(self.row.array),
            noted.base.eq(self.row.base),
            noted.shift.eq(self.row.shift),
            noted.row.eq(self.row.row),
            noted.source.eq(self.row.source),
            noted.era.eq(self.row.era),
            noted.tag.eq(MEND_TAG),
            queue.input.valid.eq(self.note),
            self.mend.noted.eq(self.note & queue.input.ready),
            self.mend.array.eq(self.row.array),
            self.busy.eq(queue.filling),
        ]
        return m


class Mending(wiring.Component):
    """Lets rows to be mended through, `MENDED` of which are on their way at most: so whatever their
    drives do, there are row slots for others.

    Parameters
    ----------
    config
        Sizes.
    inputs
        Number of `Mends`.

    Ports
    -----
    inputs
        Rows to be mended.
    walk
        Those that are let through.
    ended
        A pulse: one of them has been walked.
    busy
        A row is being passed on. This is 0 while one waits for another to end.
    """

    def __init__(self, *, config: Config, inputs: int):
        self._config = config
        self._count = inputs
        super().__init__(
            {
                "inputs": In(stream.Signature(walk(config))).array(inputs),
                "walk": Out(stream.Signature(walk(config))),
                "ended": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.merge = merge = Merge(walk(self._config), inputs=self._count)
        inside = Signal(range(MENDED + 1))
        has_room = inside != MENDED
        for ours, theirs in zip(self.inputs, merge.inputs, strict=True):
            connect(m, flipped(ours), theirs)
        m.d.comb += [
            self.walk.payload.eq(merge.output.payload),
            self.walk.valid.eq(merge.output.valid & has_room),
            merge.output.ready.eq(self.walk.ready & has_room),
            self.busy.eq(merge.busy | self.ended),
        ]
        m.d.sync += [
            inside.eq(inside + (self.walk.valid & self.walk.ready) - self.ended),
            Assert(~self.ended | (inside != 0), "a row that nobody asked for has been mended"),
        ]
        return m
