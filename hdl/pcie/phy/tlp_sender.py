"""Memory requests become TLPs: header of three or four words, then payload."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.pcie_status import PcieStatus
from hdl.pcie.phy.raw_tlp import RequestWord1, Type, Word0, swapped
from hdl.pcie.tlp import RequestKind, request_beat

HEADER_WORDS_MOST = 4


def tlp_beat(config: Config) -> data.StructLayout:
    """A beat of a TLP: ``words`` of it are valid, all but in the ``last`` one.

    ``is_read``: the TLP is a memory read, with ``tag``.
    """
    return data.StructLayout(
        {
            "data": config.data_width,
            "words": range(config.beat_dwords + 1),
            "last": 1,
            "is_read": 1,
            "tag": 8,
        }
    )


class TlpSender(wiring.Component):
    """Sends requests below 4 GiB with a header of three words, others with four (2.2.4.1).

    Parameters
    ----------
    config
        ``data_width`` 64 or 128.

    Ports
    -----
    request, tlp
        Requests in, TLPs out.
    id
        Bus, device and function number.
    status
        Which attribute bits may be set, see `hdl.pcie.phy.ultrascale.RequestInserter`.

    Throughput one beat a cycle; n words of payload after h of header are ceil((n + h) / w) beats.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(request_beat(config))),
                "tlp": Out(stream.Signature(tlp_beat(config))),
                "id": In(16),
                "status": Out(PcieStatus()),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self._config.beat_dwords
        bits = self._config.data_width
        beat = self.request.payload
        is_read = beat.kind == RequestKind.READ
        four = Signal()
        word0 = Signal(Word0)
        word1 = Signal(RequestWord1)
        high, low = beat.address[32:64], Cat(0, 0, beat.address[2:32])
        header = Cat(word0, word1, Mux(four, high, low), low)
        m.d.comb += [
            four.eq(high != 0),
            word0.length.eq(beat.dwords),
            word0.kind.eq(Type.MEMORY),
            word0.four.eq(four),
            word0.has_data.eq(~is_read),
            word0.attributes.eq(Cat(0, beat.relaxed & self.status.relaxed_ordering)),
            word0.id_ordering.eq(self.status.id_ordering),
            word1.first_enable.eq(~0),
            word1.last_enable.eq(Mux(beat.dwords > 1, 0b1111, 0)),
            word1.tag.eq(beat.tag),
            word1.requester_id.eq(self.id),
        ]

        # Beats of header alone, then beats that begin with `rest`: header at first, then payload
        # that did not fit into the beat before. A header of four words leaves no rest.
        alone = Mux(four, HEADER_WORDS_MOST // width, (HEADER_WORDS_MOST - 1) // width)
        rest_words = (HEADER_WORDS_MOST - 1) % width
        sent = Signal(range(HEADER_WORDS_MOST // width + 1))
        begun = Signal()  # a beat with payload has been sent
        tail = Signal()  # all payload has been taken, `kept` must still go
        tail_words = Signal(range(width))
        kept = Signal(32 * rest_words)
        first_rest = header[bits * ((HEADER_WORDS_MOST - 1) // width) :][: 32 * rest_words]
        rest = Mux(begun, kept, first_rest)
        payload = swapped(beat.data)
        left = Signal(12)  # words of the TLP that have not been sent, while it is under way
        due = Signal(12)
        heading = Signal()
        output = self.tlp.payload
        takes = Signal()
        total = Mux(is_read, 0, beat.dwords) + 3 + four
        m.d.comb += [
            heading.eq(sent != alone),
            due.eq(Mux((sent == 0) & ~begun, total, left)),
            self.tlp.valid.eq(tail | self.request.valid),
            output.is_read.eq(is_read & ~tail),
            output.tag.eq(beat.tag),
            output.last.eq(tail | (due <= width)),
            output.words.eq(Mux(tail, tail_words, Mux(due < width, due, width))),
            takes.eq(self.tlp.ready & ~tail & Mux(is_read, output.last, ~heading)),
            self.request.ready.eq(takes),
        ]
        with m.If(tail):
            m.d.comb += output.data.eq(kept)
        with m.Elif(heading):
            m.d.comb += output.data.eq(Mux(sent == 0, header[:bits], header[bits : 2 * bits]))
        with m.Elif(four):
            m.d.comb += output.data.eq(payload)
        with m.Else():
            m.d.comb += output.data.eq(Cat(rest, payload[: bits - 32 * rest_words]))
        with m.If(self.tlp.valid & self.tlp.ready):
            with m.If(tail):
                m.d.sync += tail.eq(0)
            with m.Else():
                m.d.sync += [
                    left.eq(due - width),
                    kept.eq(payload[bits - 32 * rest_words :]),
                    tail_words.eq(due - width),
                ]
                with m.If(heading):
                    m.d.sync += sent.eq(sent + 1)
                with m.Elif(~is_read):
                    m.d.sync += begun.eq(1)
                with m.If(Mux(is_read, output.last, ~heading & beat.last)):
                    m.d.sync += [sent.eq(0), begun.eq(0), tail.eq(~output.last)]
        return m
