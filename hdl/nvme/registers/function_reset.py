"""Function level reset: the host side ends at once, the drives' side ends when it can."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class FunctionReset(wiring.Component):
    """Keeps what is under way at a function level reset from reaching the host.

    While ``request`` is 1 and until every command inside has ended afterwards, nothing leaves for
    host memory. The reset itself is ``done`` as soon as no host access is left that could still
    have an effect. So a slow drive does not delay it (PCIe base specification 6.6.2 allows 100 ms).
    A controller that is disabled without bus mastering drains in the same way, since its requests
    could wait for ever. It stays ready until all has ended, as any controller that is disabled.

    Ports
    -----
    request
        A level from the hard block: the function is to be reset.
    done
        A level until ``request`` falls: it is reset.
    bus_master
        The function may send requests.
    enable
        As in `QueueEngine`.
    running
        As in `QueueEngine`.
    idle
        Nothing moved in the front end in the last cycle, and there was neither a host access nor a
        tag in use.
    draining
        Commands from before the reset are inside. The queues must not open, and
        `hdl.pcie.endpoint.Endpoint` is to discard what it has.
    forgotten
        These commands are from before a reset of the function. The host sees nothing of them any
        more.
    busy
        A reset begins, or ends.
    """

    def __init__(self):
        super().__init__(
            {
                "request": In(1),
                "done": Out(1),
                "bus_master": In(1),
                "enable": In(1),
                "running": In(1),
                "idle": In(1),
                "draining": Out(1),
                "forgotten": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        ends = self.idle & ~self.running
        m.d.sync += [
            self.draining.eq(
                self.request
                | (self.running & ~self.enable & ~self.bus_master)
                | (self.draining & ~ends)
            ),
            self.forgotten.eq(self.request | (self.forgotten & ~ends)),
            self.done.eq(self.request & self.draining & (self.idle | self.done)),
        ]
        m.d.comb += self.busy.eq((self.request & ~self.done) | (self.draining & ends))
        return m
