"""Small posted writes to the host: completion queue entries and interrupts."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out


class Messages(wiring.Signature):
    """The one MSI-X message that may be under way, seen from its sender.

    Ports
    -----
    withhold
        The message must not leave any more.
    left, dropped
        Pulses, one of them for each message. The message has been handed to the hard block, or
        never will be.
    """

    def __init__(self):
        super().__init__({"withhold": Out(1), "left": In(1), "dropped": In(1)})


POST_DWORDS = 4


def post() -> data.StructLayout:
    """A small posted write of ``dwords`` 32-bit words (1..4): a completion queue entry or an
    interrupt.

    ``message``: it is an MSI-X message, which has one word.
    """
    return data.StructLayout(
        {"address": 64, "dwords": 3, "message": 1, "data": 32 * POST_DWORDS}
    )
