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
    request
        Requests of the controller.
    tlp
        The TLPs that they become.
    id
        Bus, device and function number.
    status
        Which attribute bits may be set (`hdl.pcie.phy.ultrascale.RequestInserter`).

    The throughput is one beat a cycle. n words of payload after h of header are ceil((n + h) / w)
    beats.
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

        bits = config.data_width
        self._is_read = self.request.payload.kind == RequestKind.READ
        self._four = Signal()  # the header has four words
        self._header = Signal(32 * HEADER_WORDS_MOST)

        # Beats of header alone, then beats that begin with `rest`: header at first, then payload
        # that did not fit into the beat before. A header of four words leaves no rest.
        self._rest_words = (HEADER_WORDS_MOST - 1) % config.beat_dwords
        self._sent = Signal(range(HEADER_WORDS_MOST // config.beat_dwords + 1))
        self._heading = Signal()  # the beat is one of header alone
        self._begun = Signal()  # a beat with payload has been sent
        self._tail = Signal()  # all payload has been taken, `kept` must still go
        self._tail_words = Signal(range(config.beat_dwords))
        self._kept = Signal(32 * self._rest_words)
        self._payload = swapped(self.request.payload.data)
        self._whole_bits = bits - 32 * self._rest_words  # of payload that go in the same beat
        self._due = Signal(12)  # words of the TLP that have not been sent

    def elaborate(self, platform) -> Module:
        m = Module()
        self._make_header(m)
        self._decide(m)
        self._send(m)
        self._go_on(m)
        return m

    def _make_header(self, m: Module) -> None:
        """The header of the request."""
        beat, four = self.request.payload, self._four
        word0 = Signal(Word0)
        word1 = Signal(RequestWord1)
        high, low = beat.address[32:64], Cat(0, 0, beat.address[2:32])
        m.d.comb += [
            four.eq(high != 0),
            word0.length.eq(beat.dwords),
            word0.kind.eq(Type.MEMORY),
            word0.four.eq(four),
            word0.has_data.eq(~self._is_read),
            word0.attributes.eq(Cat(0, beat.relaxed & self.status.relaxed_ordering)),
            word0.id_ordering.eq(self.status.id_ordering),
            word1.first_enable.eq(~0),
            word1.last_enable.eq(Mux(beat.dwords > 1, 0b1111, 0)),
            word1.tag.eq(beat.tag),
            word1.requester_id.eq(self.id),
            self._header.eq(Cat(word0, word1, Mux(four, high, low), low)),
        ]

    def _decide(self, m: Module) -> None:
        """What of the TLP the beat is, and how much of it is left."""
        beat, output, width = self.request.payload, self.tlp.payload, self._config.beat_dwords
        is_read, tail, due = self._is_read, self._tail, self._due
        left = Signal(12)  # words of the TLP that have not been sent, while it is under way
        takes = Signal()
        alone = Mux(self._four, HEADER_WORDS_MOST // width, (HEADER_WORDS_MOST - 1) // width)
        total = Mux(is_read, 0, beat.dwords) + 3 + self._four
        m.d.comb += [
            self._heading.eq(self._sent != alone),
            due.eq(Mux((self._sent == 0) & ~self._begun, total, left)),
            self.tlp.valid.eq(tail | self.request.valid),
            output.is_read.eq(is_read & ~tail),
            output.tag.eq(beat.tag),
            output.last.eq(tail | (due <= width)),
            output.words.eq(Mux(tail, self._tail_words, Mux(due < width, due, width))),
            takes.eq(self.tlp.ready & ~tail & Mux(is_read, output.last, ~self._heading)),
            self.request.ready.eq(takes),
        ]
        with m.If(self.tlp.valid & self.tlp.ready & ~tail):
            m.d.sync += left.eq(due - width)

    def _send(self, m: Module) -> None:
        """The words of the beat."""
        bits, header, payload = self._config.data_width, self._header, self._payload
        output, whole = self.tlp.payload, payload[: self._whole_bits]
        first_rest = header[bits * ((HEADER_WORDS_MOST - 1) // self._config.beat_dwords) :]
        rest = Mux(self._begun, self._kept, first_rest[: 32 * self._rest_words])
        with m.If(self._tail):
            m.d.comb += output.data.eq(self._kept)
        with m.Elif(self._heading):
            words = Mux(self._sent == 0, header[:bits], header[bits : 2 * bits])
            m.d.comb += output.data.eq(words)
        with m.Elif(self._four):
            m.d.comb += output.data.eq(payload)
        with m.Else():
            m.d.comb += output.data.eq(Cat(rest, whole))

    def _go_on(self, m: Module) -> None:
        """Goes on to the next beat once this one has been taken."""
        beat, output, tail = self.request.payload, self.tlp.payload, self._tail
        sent, begun, is_read = self._sent, self._begun, self._is_read
        with m.If(self.tlp.valid & self.tlp.ready):
            with m.If(tail):
                m.d.sync += tail.eq(0)
            with m.Else():
                m.d.sync += [
                    self._kept.eq(self._payload[self._whole_bits :]),
                    self._tail_words.eq(self._due - self._config.beat_dwords),
                ]
                with m.If(self._heading):
                    m.d.sync += sent.eq(sent + 1)
                with m.Elif(~is_read):
                    m.d.sync += begun.eq(1)
                with m.If(Mux(is_read, output.last, ~self._heading & beat.last)):
                    m.d.sync += [sent.eq(0), begun.eq(0), tail.eq(~output.last)]
