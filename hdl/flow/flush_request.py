"""A request to flush the drives of all arrays."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class FlushRequest(wiring.Signature):
    """A request to flush the drives of all arrays, seen from who asks for it.

    Ports
    -----
    flush
        A level. Every command whose writes are meant has ended. It stays until ``flushed``.
    flushed
        A level or a pulse. Since ``flush`` rose, every drive of every array has been flushed, or
        has failed to be.
    stored
        With ``flushed``: every drive that is not failed has been flushed well, and nothing is lost.
    """

    def __init__(self):
        super().__init__({"flush": Out(1), "flushed": In(1), "stored": In(1)})
