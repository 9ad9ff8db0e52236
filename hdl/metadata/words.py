"""Words of a line, one after the other."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, Config, bits_for_count
from hdl.flow.line import ReadPort, write_port
from hdl.metadata.superblock import WORD_BITS

NUMBER_BITS = bits_for_count(DWORDS_PER_BLOCK)


class PageWord(data.Struct):
    """A word of a page, and its number."""

    number: NUMBER_BITS
    word: WORD_BITS


class WordReader(wiring.Component):
    """Reads the first words of a line in their order.

    A beat takes 5 cycles and a cycle for each of its words, which is a word in 2.25 cycles with
    beats of 128 bits. Nothing else waits for it.

    Parameters
    ----------
    config
        Sizes.
    words
        How many words are read. They fill whole beats.

    Ports
    -----
    line
        The line to be read. It is taken once all words of the one before have been.
    words
        Its words.
    line_read
        The line store's port.
    busy
        It works, and does not wait for who takes the words.
    """

    def __init__(self, *, config: Config, words: int):
        if not 1 <= words <= DWORDS_PER_BLOCK or words % config.beat_dwords:
            raise ValueError(f"{words} words do not fill beats of {config.beat_dwords}")
        self._config = config
        self._beats = words // config.beat_dwords
        super().__init__(
            {
                "line": In(stream.Signature(config.line_bits)),
                "words": Out(stream.Signature(WORD_BITS)),
                "line_read": Out(ReadPort(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config, request = self._config, self.line_read.request
        m = Module()
        line = Signal(config.line_bits)
        beat = Signal(bits_for_count(config.beats))
        word = Signal(bits_for_count(config.beat_dwords))
        kept = Signal(config.data_width, reset_less=True)
        m.d.comb += [
            request.payload.eq(Cat(beat, line)),
            self.words.payload.eq(kept.word_select(word, WORD_BITS)),
        ]
        with m.FSM(name="read_words") as fsm:
            with m.State("REST"):
                m.d.comb += self.line.ready.eq(1)
                m.d.sync += [line.eq(self.line.payload), beat.eq(0)]
                with m.If(self.line.valid):
                    m.next = "ASK"

            with m.State("ASK"):
                m.d.comb += request.valid.eq(1)
                with m.If(request.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.sync += kept.eq(self.line_read.response)
                with m.If(self.line_read.response_valid):
                    m.next = "GIVE"

            with m.State("GIVE"):
                m.d.comb += self.words.valid.eq(1)
                with m.If(self.words.ready):
                    m.d.sync += word.eq(word + 1)
                    with m.If(word == config.beat_dwords - 1):
                        m.d.sync += beat.eq(beat + 1)
                        m.next = "ASK"
                        with m.If(beat == self._beats - 1):
                            m.next = "REST"

            waits = (fsm.ongoing("REST") & ~self.line.valid) | (
                fsm.ongoing("GIVE") & ~self.words.ready
            )
        m.d.comb += self.busy.eq(~waits)
        return m


class WordWriter(wiring.Component):
    """Writes words into a line, each as a beat of its own. Combinational, a word a cycle.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    line
        A level. The line.
    words
        Words for it. None of a line comes twice within `hdl.memory.store.write_delay`.
    line_write
        The line store's port. A word can be read `hdl.memory.store.write_delay` cycles after it was
        taken.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "line": In(config.line_bits),
                "words": In(stream.Signature(PageWord)),
                "line_write": Out(write_port(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        config, beat, given = self._config, self.line_write.payload, self.words.payload
        m = Module()
        within = bits_for_count(config.beat_dwords)
        m.d.comb += [
            beat.address.eq(Cat(given.number[within:], self.line)),
            beat.data.eq(given.word.replicate(config.beat_dwords)),
            beat.mask.eq(1 << given.number[:within]),
            self.line_write.valid.eq(self.words.valid),
            self.words.ready.eq(self.line_write.ready),
        ]
        return m
