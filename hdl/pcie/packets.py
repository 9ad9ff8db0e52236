"""Several streams of request TLPs become one, whole packets at a time."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.cut import Relay
from hdl.pcie.tlp import request_beat


class PacketMerge(wiring.Component):
    """Takes turns between two streams of packets, changing only after a ``last`` beat.

    When both have a packet they alternate. Throughput one beat a cycle, also from one packet to
    the next; latency one cycle; the output is registered. Beats leave in the order they came in.
    """

    def __init__(self, *, config: Config):
        shape = request_beat(config)
        super().__init__(
            {
                "first_input": In(stream.Signature(shape)),
                "second_input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        first, second = self.first_input, self.second_input
        m.submodules.relay = relay = Relay(first.payload.shape())
        wiring.connect(m, relay.output, wiring.flipped(self.output))
        inside = Signal()  # a packet has begun and not ended
        owner = Signal()  # 1: the second input had the last packet, or has this one
        chosen = Signal()
        valid = Signal()
        room = Signal()
        m.d.comb += [
            chosen.eq(Mux(inside, owner, Mux(owner, ~first.valid, second.valid))),
            valid.eq(Mux(chosen, second.valid, first.valid)),
            room.eq(relay.input.ready),
            relay.input.valid.eq(valid),
            relay.input.payload.eq(
                Mux(chosen, second.payload.as_value(), first.payload.as_value())
            ),
            first.ready.eq(room & ~chosen),
            second.ready.eq(room & chosen),
            self.busy.eq(first.valid | second.valid | relay.busy | relay.output.valid),
        ]
        with m.If(room & valid):
            m.d.sync += [
                owner.eq(chosen),
                inside.eq(~Mux(chosen, second.payload.last, first.payload.last)),
            ]
        return m
