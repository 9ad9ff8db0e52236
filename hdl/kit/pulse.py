"""Pulses that carry something."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out


class Pulse(wiring.Signature):
    """Something that happens in one cycle, and what it is about. The receiver cannot refuse it.

    It is a stream without ``ready``. Amaranth has ``always_ready`` streams, whose ``ready`` is a
    constant. Such a member cannot be a port of a top module, and each block of a test is one.

    Ports
    -----
    valid
        It happens in this cycle.
    payload
        With ``valid``: what it is about.

    Parameters
    ----------
    shape
        Of the payload.
    """

    def __init__(self, shape):
        super().__init__({"valid": Out(1), "payload": Out(shape)})
