"""The receive stream of the 7-series PCIe block (PG054): every TLP from word 0 of a beat on."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.cut import Relay

STRADDLING = 128
"""Width at which a TLP may begin in the upper half of the beat in which another one ends."""


class ReceiveUser(data.Struct):
    """``m_axis_rx_tuser``. Of 64 bits, only the first three fields; else tells where TLPs lie."""

    bad_digest: 1
    poisoned: 1
    bar_hit: 8
    start_byte: 4
    starts: 1
    reserved: 2
    end_byte: 4
    ends: 1


RECEIVE_USER_BITS = ReceiveUser.as_shape().size


def received_beat(config: Config) -> data.StructLayout:
    """A beat of a received TLP (`hdl.pcie.phy.tlp_sender.tlp_beat`); ``bar_hit`` in the first."""
    return data.StructLayout(
        {
            "data": config.data_width,
            "words": range(config.beat_dwords + 1),
            "first": 1,
            "last": 1,
            "bar_hit": 8,
        }
    )


class TlpReceiver(wiring.Component):
    """Aligns received TLPs: one that begins in the upper half of a beat moves down by two words.

    Parameters
    ----------
    config
        ``data_width`` 64 or 128.

    Ports
    -----
    rx_*
        ``m_axis_rx_*`` of the block.
    tlp
        Aligned TLPs.
    busy
        Something is on its way.

    The throughput is one beat a cycle, but a TLP that has moved may take one cycle more. The
    latency is 1 cycle.
    """

    def __init__(self, *, config: Config):
        if config.data_width not in (64, STRADDLING):
            raise ValueError(f"data_width must be 64 or 128, not {config.data_width}")
        self._config = config
        super().__init__(
            {
                "rx_tdata": In(config.data_width),
                "rx_tkeep": In(config.data_width // 8),
                "rx_tlast": In(1),
                "rx_tuser": In(RECEIVE_USER_BITS),
                "rx_tvalid": In(1),
                "rx_tready": Out(1),
                "tlp": Out(stream.Signature(received_beat(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.relay = relay = Relay(received_beat(self._config))
        wiring.connect(m, relay.output, wiring.flipped(self.tlp))
        output = relay.input
        user = ReceiveUser(self.rx_tuser)
        fresh = Signal(init=1)  # the next beat is the first of its TLP
        m.d.comb += [output.payload.first.eq(fresh), output.payload.bar_hit.eq(user.bar_hit)]
        with m.If(output.valid & output.ready):
            m.d.sync += fresh.eq(output.payload.last)
        if self._config.data_width == STRADDLING:
            self._align(m, user, output)
        else:
            m.d.comb += [
                output.valid.eq(self.rx_tvalid),
                self.rx_tready.eq(output.ready),
                output.payload.data.eq(self.rx_tdata),
                output.payload.last.eq(self.rx_tlast),
                output.payload.words.eq(Mux(self.rx_tlast & ~self.rx_tkeep[4], 1, 2)),
                self.busy.eq(self.rx_tvalid | relay.busy | self.tlp.valid),
            ]
        return m

    def _align(self, m: Module, user, output) -> None:
        """Beats of 128 bits: a TLP that begins in the upper half moves down."""
        half = STRADDLING // 2
        shifted = Signal()  # the TLP that has begun did so in an upper half: `kept`
        kept = Signal(half)
        kept_hit = Signal(8)
        tail = Signal()  # nothing but `kept` is left of it
        tail_words = Signal(2)
        end_word = user.end_byte[2:]
        ends_low = user.ends & ~end_word[1]
        ends_high = user.ends & end_word[1]
        starts_high = user.starts & user.start_byte[3]
        inside = Signal()
        lone = starts_high & ~inside  # a start in the upper half with nothing before it
        m.d.comb += [
            output.valid.eq(tail | (self.rx_tvalid & ~lone)),
            self.rx_tready.eq(output.ready & ~tail),
            self.busy.eq(
                self.rx_tvalid | tail | output.valid | self.tlp.valid
            ),
        ]
        with m.If(tail):
            m.d.comb += [
                output.payload.data.eq(kept),
                output.payload.last.eq(1),
                output.payload.words.eq(tail_words),
            ]
        with m.Elif(shifted):
            m.d.comb += [
                output.payload.data.eq(Cat(kept, self.rx_tdata[:half])),
                output.payload.last.eq(ends_low),
                output.payload.words.eq(Mux(ends_low, end_word + 3, 4)),
            ]
        with m.Else():
            m.d.comb += [
                output.payload.data.eq(self.rx_tdata),
                output.payload.last.eq(user.ends),
                output.payload.words.eq(Mux(user.ends, end_word + 1, 4)),
            ]
        with m.If(shifted):
            m.d.comb += output.payload.bar_hit.eq(kept_hit)
        with m.If(output.ready & tail):
            m.d.sync += [tail.eq(0), shifted.eq(0), inside.eq(0)]
        with m.Elif(self.rx_tvalid & self.rx_tready):
            m.d.sync += kept.eq(self.rx_tdata[half:])
            with m.If(starts_high):
                m.d.sync += kept_hit.eq(user.bar_hit)
            with m.If(starts_high):
                m.d.sync += [shifted.eq(1), inside.eq(1)]
            with m.Elif(shifted & ends_high):
                m.d.sync += [tail.eq(1), tail_words.eq(end_word - 1)]
            with m.Elif(user.ends):
                m.d.sync += [shifted.eq(0), inside.eq(0)]
            with m.Else():
                m.d.sync += inside.eq(1)
