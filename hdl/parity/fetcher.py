"""Reads the input blocks of parity passes from the line store, with no pause between them."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config, bits_for_count
from hdl.flow.line import ReadPort
from hdl.flow.parity_pass import piece_field
from hdl.kit.cut import Skid
from hdl.parity.decoder import input_block
from hdl.parity.engine import BANKS, coefficients, engine_beat
from hdl.parity.pieces import beat_number, is_last

BLOCKS_IN_FLIGHT = 2
"""Blocks whose beats may be on their way at once: one that ends and the next that begins."""


class BlockFetcher(wiring.Component):
    """Asks for the beats of each input block, or piece of it, and gives them to the engine as they
    come.

    The first block of a pass waits until the engine has a bank for it, so that beats, which cannot
    be refused, are always taken.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inputs
        Blocks to read; one is taken when its last beat has been asked for.
    line_read
        Reading side of the line store. One beat a cycle, without a pause between blocks or passes
        while ``inputs`` offers the next and the engine has a bank.
    beats
        To `hdl.parity.engine.ParityEngine`, whose ``ready`` must be 1 whenever fewer than two
        passes are in it.
    released
        From the engine: a pass has left it.
    busy
        A beat is on its way, or a block waits.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "inputs": In(stream.Signature(input_block(config))),
                "line_read": Out(ReadPort(config)),
                "beats": Out(stream.Signature(engine_beat(config))),
                "released": In(1),
                "busy": Out(1),
            }
        )

        self._skid = Skid(config.beat_address_bits)
        self._begins = Signal()  # a block begins to be asked for
        self._ends = Signal()  # a block has been answered
        self._in_flight = Signal(range(BLOCKS_IN_FLIGHT + 1))  # blocks
        self._slot_in = Signal()  # of the block being asked for
        self._slot_out = Signal()  # of the block being answered

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.skid = self._skid
        connect(m, self._skid.output, flipped(self.line_read.request))
        self._ask(m)
        self._answer(m)
        self._keep_blocks(m)
        in_flight = self._in_flight
        m.d.sync += in_flight.eq(in_flight + self._begins - self._ends)
        m.d.comb += self.busy.eq(self.inputs.valid | (in_flight != 0))
        return m

    def _ask(self, m: Module) -> None:
        """Asks for the beats of blocks, as long as there is room for a block and for its pass."""
        config, block, request = self._config, self.inputs.payload, self._skid.input
        asked = Signal(bits_for_count(config.beats))
        asked_last = Signal()
        passes = Signal(range(BANKS + 1))
        has_bank = ~block.first | (passes != BANKS)
        room = (self._in_flight != BLOCKS_IN_FLIGHT) & has_bank
        taken = request.valid & request.ready
        m.d.comb += [
            self._begins.eq(taken & (asked == 0)),
            request.valid.eq(self.inputs.valid & ((asked != 0) | room)),
            request.payload.eq(Cat(beat_number(config, asked, block), block.line)),
            asked_last.eq(is_last(config, asked, block)),
            self.inputs.ready.eq(taken & asked_last),
        ]
        with m.If(taken):
            m.d.sync += asked.eq(Mux(asked_last, 0, asked + 1))
        m.d.sync += passes.eq(passes + (self._begins & block.first) - self.released)

    def _answer(self, m: Module) -> None:
        """Passes the beats on to the engine."""
        config, beat = self._config, self.beats.payload
        answered = Signal(bits_for_count(config.beats))
        answered_last = Signal()
        m.d.comb += [
            self.beats.valid.eq(self.line_read.response_valid),
            beat.data.eq(self.line_read.response),
            answered_last.eq(is_last(config, answered, beat)),
            self._ends.eq(self.line_read.response_valid & answered_last),
        ]
        with m.If(self.line_read.response_valid):
            m.d.sync += answered.eq(Mux(answered_last, 0, answered + 1))

    def _keep_blocks(self, m: Module) -> None:
        """What is known of the blocks between being asked for and being answered."""
        config, block, beat = self._config, self.inputs.payload, self.beats.payload
        begins, slot_in, slot_out = self._begins, self._slot_in, self._slot_out
        for slot in range(BLOCKS_IN_FLIGHT):
            weights = Signal(coefficients(config), name=f"weights_{slot}")
            first = Signal(name=f"first_{slot}")
            last = Signal(name=f"last_{slot}")
            piece = Signal(data.StructLayout(piece_field(config)), name=f"piece_{slot}")
            with m.If(begins & (slot_in == slot)):
                m.d.sync += [
                    weights.eq(block.coefficients),
                    first.eq(block.first),
                    last.eq(block.last),
                    *(piece[name].eq(block[name]) for name in piece_field(config)),
                ]
            with m.If(slot_out == slot):
                m.d.comb += [
                    beat.coefficients.eq(weights),
                    beat.first_input.eq(first),
                    beat.last_input.eq(last),
                    *(beat[name].eq(piece[name]) for name in piece_field(config)),
                ]
        with m.If(begins):
            m.d.sync += slot_in.eq(~slot_in)
        with m.If(self._ends):
            m.d.sync += slot_out.eq(~slot_out)
