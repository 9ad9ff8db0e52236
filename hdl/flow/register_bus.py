"""Register accesses of the host."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

BAR_BITS = 14
"""BAR 0 has 16 KiB for NVMe registers, doorbells, MSI-X table and pending bits."""


class RegisterBus(wiring.Signature):
    """Register accesses of the host, seen from the PCIe side. They come one at a time, in order.

    Ports
    -----
    request
        A naturally aligned access of up to 8 bytes at byte address ``address``, a multiple of 8.
        ``enable`` has a bit for each byte.
    response
        The answer to a read. A write has no answer.
    """

    def __init__(self):
        super().__init__(
            {
                "request": Out(
                    stream.Signature(
                        data.StructLayout(
                            {"address": BAR_BITS, "write": 1, "data": 64, "enable": 8}
                        )
                    )
                ),
                "response": In(stream.Signature(64)),
            }
        )
