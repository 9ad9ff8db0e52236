"""Register accesses of the host."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

BAR_BITS = 14
"""BAR 0 is 16 KiB: NVMe registers, doorbells, MSI-X table and pending bits."""


class RegisterBus(wiring.Signature):
    """Register accesses of the host, seen from the PCIe side: one at a time, in order.

    ``request``: a naturally aligned access of up to 8 bytes at byte address ``address`` (a multiple
    of 8); ``enable`` has a bit per byte. A read is answered by one ``response``, a write by none.
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
