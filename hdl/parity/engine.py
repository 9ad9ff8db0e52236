"""Multiply-accumulate of whole blocks: out[j] = sum of coefficient[j] * block, W bits a cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.parity_pass import piece_field
from hdl.kit.disjoint import DISJOINT
from hdl.parity.field import ELEMENT_BITS, RAID_FIELD
from hdl.parity.galois import bit_matrix, multiply_word
from hdl.parity.pieces import beat_number, is_last

BANKS = 2
"""Rows in the engine at once: one that accumulates while the one before it drains."""


def coefficients(config: Config) -> data.ArrayLayout:
    """The weight of one block in each syndrome."""
    return data.ArrayLayout(ELEMENT_BITS, config.parities)


def engine_beat(config: Config) -> data.StructLayout:
    """A beat of an input block. Everything but ``data`` holds on all beats of the block.

    ``first_input`` begins a row (what was accumulated is forgotten), ``last_input`` ends it.
    """
    return data.StructLayout(
        {
            "data": config.data_width,
            "coefficients": coefficients(config),
            "first_input": 1,
            "last_input": 1,
            **piece_field(config),
        }
    )


def syndrome_bits(config: Config) -> int:
    """Width of the number of a syndrome."""
    return bits_for_count(config.parities)


def drain_request(config: Config, tag_bits: int) -> data.StructLayout:
    """Send ``syndrome`` of the oldest row; ``release`` ends that row. ``tag`` goes along."""
    return data.StructLayout(
        {
            "syndrome": syndrome_bits(config),
            "release": 1,
            "tag": tag_bits,
            **piece_field(config),
        }
    )


def drained_beat(config: Config, tag_bits: int) -> data.StructLayout:
    """Beat number ``beat`` of a syndrome; ``last`` is its last beat."""
    return data.StructLayout(
        {
            "data": config.data_width,
            "beat": bits_for_count(config.beats),
            "last": 1,
            "tag": tag_bits,
        }
    )


class ParityEngine(wiring.Component):
    """Accumulates the weighted sums of the blocks of a row, one for each syndrome.

    Rows come as whole blocks of ``config.beats`` beats, or as the same piece of each block. There
    are two banks of accumulators: a row is drained while the next accumulates. A row's drained
    blocks do not depend on what follows.

    Parameters
    ----------
    config
        Uses ``data_width``, ``beats`` and ``parities``.
    tag_bits
        Width of what travels from a drain request to its beats.

    Ports
    -----
    beats
        Input blocks. One beat a cycle with no pause between blocks or rows; refused only at the
        first beat of a row while the row two before it has not been drained.
    drain
        Which syndrome to send next, in any order and any number of times, until ``release``. Taken
        when its last beat has been read, so the request must stay; waits for a complete row. The
        first beat is offered 5 cycles after the last input beat was taken.
    output
        Drained beats, one a cycle with no pause between requests, in order.
    released
        1 in the cycle in which a bank becomes free.
    draining
        A beat is on its way to ``output``.
    busy
        Something moves.

    Source: H. P. Anvin, The mathematics of RAID-6, sections 2 and 3.
    """

    def __init__(self, *, config: Config, tag_bits: int = 1):
        self._config = config
        super().__init__(
            {
                "beats": In(stream.Signature(engine_beat(config))),
                "drain": In(stream.Signature(drain_request(config, tag_bits))),
                "output": Out(stream.Signature(drained_beat(config, tag_bits))),
                "released": Out(1),
                "draining": Out(1),
                "busy": Out(1),
            }
        )

        width, parities = config.data_width, config.parities
        beat_bits = bits_for_count(config.beats)
        self._tag_bits = tag_bits
        # Of each bank, of each syndrome.
        self._accumulators = [
            Memory(shape=width, depth=config.beats, init=[], attrs=DISJOINT)
            for _ in range(BANKS * parities)
        ]
        self._reads = [memory.read_port() for memory in self._accumulators]

        # Rows that hold a bank: `claimed` from the last beat taken until drained, `complete` when
        # all sums are in memory and draining has not come to the end.
        self._claimed = Signal(range(BANKS + 1))
        self._complete = Signal(range(BANKS + 1))
        self._takes_last = Signal()
        self._reads_last = Signal()

        self._s1_valid = Signal()
        self._s1_data = Signal(width, reset_less=True)
        self._s1_beat = Signal(beat_bits, reset_less=True)
        self._s1_first = Signal(reset_less=True)
        self._s1_end = Signal(reset_less=True)
        self._s1_bank = Signal(reset_less=True)
        self._s1_columns = [
            [
                Signal(ELEMENT_BITS, reset_less=True, name=f"s1_column_{syndrome}_{bit}")
                for bit in range(ELEMENT_BITS)
            ]
            for syndrome in range(parities)
        ]

        self._s2_valid = Signal()
        self._s2_products = [
            Signal(width, reset_less=True, name=f"s2_product_{syndrome}")
            for syndrome in range(parities)
        ]
        self._s2_beat = Signal(beat_bits, reset_less=True)
        self._s2_first = Signal(reset_less=True)
        self._s2_end = Signal(reset_less=True)
        self._s2_bank = Signal(reset_less=True)

        self._drain_bank = Signal()
        self._d0_go = Signal()
        self._d0_address = Signal(beat_bits)
        self._d1_valid = Signal()
        self._d1_move = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        parities = self._config.parities
        for index, memory in enumerate(self._accumulators):
            bank, syndrome = divmod(index, parities)
            m.submodules[f"accumulator_{bank}_{syndrome}"] = memory
        self._take(m)
        self._weigh(m)
        self._add(m)
        self._read(m)
        self._send(m)
        m.d.sync += [
            self._claimed.eq(self._claimed + self._takes_last - self.released),
            self._complete.eq(
                self._complete + (self._s2_valid & self._s2_end) - self._reads_last
            ),
        ]
        m.d.comb += self.busy.eq(
            Cat(
                self.beats.valid,
                self._s1_valid,
                self._s2_valid,
                self.drain.valid & (self._complete != 0),
                self.draining,
            ).any()
        )
        return m

    def _take(self, m: Module) -> None:
        """Stage 0: a beat is taken. The matrices are made at the first beat of a block."""
        config, beat = self._config, self.beats.payload
        s0_beat = Signal(bits_for_count(config.beats))
        last = Signal()
        fill_bank = Signal()
        taken = self.beats.valid & self.beats.ready
        m.d.comb += [
            self.beats.ready.eq(self._claimed != BANKS),
            last.eq(is_last(config, s0_beat, beat)),
            self._takes_last.eq(taken & beat.last_input & last),
        ]
        m.d.sync += self._s1_valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                self._s1_data.eq(beat.data),
                self._s1_beat.eq(beat_number(config, s0_beat, beat)),
                self._s1_first.eq(beat.first_input),
                self._s1_end.eq(beat.last_input & last),
                self._s1_bank.eq(fill_bank),
                s0_beat.eq(Mux(last, 0, s0_beat + 1)),
            ]
            with m.If(s0_beat == 0):
                for syndrome, columns in enumerate(self._s1_columns):
                    matrix = bit_matrix(RAID_FIELD, beat.coefficients[syndrome])
                    m.d.sync += [
                        column.eq(value) for column, value in zip(columns, matrix, strict=True)
                    ]
        with m.If(self._takes_last):
            m.d.sync += fill_bank.eq(~fill_bank)

    def _weigh(self, m: Module) -> None:
        """Stage 1: products; the accumulators are being read."""
        products = multiply_word(
            m, RAID_FIELD, self._s1_data, self._s1_columns, name="s1_word"
        )
        m.d.sync += self._s2_valid.eq(self._s1_valid)
        with m.If(self._s1_valid):
            m.d.sync += [
                self._s2_beat.eq(self._s1_beat),
                self._s2_first.eq(self._s1_first),
                self._s2_end.eq(self._s1_end),
                self._s2_bank.eq(self._s1_bank),
                *(
                    register.eq(value)
                    for register, value in zip(self._s2_products, products, strict=True)
                ),
            ]

    def _add(self, m: Module) -> None:
        """Stage 2: adds and writes back. An address comes again after the beats of a piece (8) at
        the earliest, and its sum is in memory after two."""
        for index, (memory, read) in enumerate(zip(self._accumulators, self._reads, strict=True)):
            bank, syndrome = divmod(index, self._config.parities)
            write = memory.write_port()
            old = Mux(self._s2_first, 0, read.data)
            m.d.comb += [
                write.addr.eq(self._s2_beat),
                write.data.eq(self._s2_products[syndrome] ^ old),
                write.en.eq(self._s2_valid & (self._s2_bank == bank)),
            ]

    def _read(self, m: Module) -> None:
        """The accumulators are read: to be added to, or else to be drained."""
        request = self.drain.payload
        for index, read in enumerate(self._reads):
            bank, syndrome = divmod(index, self._config.parities)
            adding = self._s1_valid & ~self._s1_first & (self._s1_bank == bank)
            reading = self._d0_go & (self._drain_bank == bank) & (request.syndrome == syndrome)
            m.d.comb += [
                read.addr.eq(Mux(adding, self._s1_beat, self._d0_address)),
                read.en.eq(adding | reading),
            ]

    def _send(self, m: Module) -> None:
        """Drain: address, memory output (held while it cannot move on), output register."""
        config, request, output = self._config, self.drain.payload, self.output
        beat_bits = bits_for_count(config.beats)
        d0_beat = Signal(beat_bits)
        d0_last = Signal()
        d1_bank = Signal(reset_less=True)
        d1_release = Signal(reset_less=True)
        d1_syndrome = Signal(syndrome_bits(config), reset_less=True)
        d1_beat = Signal(beat_bits, reset_less=True)
        d1_last = Signal(reset_less=True)
        d1_tag = Signal(self._tag_bits, reset_less=True)
        waiting = self.drain.valid & (self._complete != 0)
        m.d.comb += [
            self._d1_move.eq(~output.valid | output.ready),
            d0_last.eq(is_last(config, d0_beat, request)),
            self._d0_address.eq(beat_number(config, d0_beat, request)),
            self._d0_go.eq(waiting & (~self._d1_valid | self._d1_move)),
            self._reads_last.eq(self._d0_go & d0_last & request.release),
            self.drain.ready.eq(self._d0_go & d0_last),
            self.released.eq(self._d1_valid & self._d1_move & d1_release),
            self.draining.eq(self._d1_valid | output.valid),
        ]
        with m.If(self._d0_go):
            m.d.sync += [
                d0_beat.eq(Mux(d0_last, 0, d0_beat + 1)),
                self._d1_valid.eq(1),
                d1_bank.eq(self._drain_bank),
                d1_release.eq(d0_last & request.release),
                d1_syndrome.eq(request.syndrome),
                d1_beat.eq(self._d0_address),
                d1_last.eq(d0_last),
                d1_tag.eq(request.tag),
            ]
        with m.Elif(self._d1_move):
            m.d.sync += self._d1_valid.eq(0)
        with m.If(self._reads_last):
            m.d.sync += self._drain_bank.eq(~self._drain_bank)
        with m.If(self._d1_move):
            m.d.sync += output.valid.eq(self._d1_valid)
            with m.If(self._d1_valid):
                m.d.sync += [
                    output.payload.beat.eq(d1_beat),
                    output.payload.last.eq(d1_last),
                    output.payload.tag.eq(d1_tag),
                ]
                with m.Switch(Cat(d1_bank, d1_syndrome)):
                    for index, read in enumerate(self._reads):
                        bank, syndrome = divmod(index, config.parities)
                        with m.Case(bank | syndrome * BANKS):
                            m.d.sync += output.payload.data.eq(read.data)
