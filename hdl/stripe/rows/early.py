"""Works out lost blocks piece by piece while the blocks that they follow from are landing."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import PIECES, Config, bits_for_count
from hdl.flow.parity_pass import StepKind, pass_done, step
from hdl.flow.piece import PIECE_CYCLES, early_seat, piece
from hdl.kit.bits import ones
from hdl.kit.pick import lowest_bit
from hdl.kit.queue import Queue
from hdl.kit.table import Table
from hdl.stripe.rows.piece_count import PieceCount


class Early(wiring.Component):
    """Repeats the recovery pass of a row for each piece of its blocks, as soon as that has landed.

    A row takes a seat. Its operations say which, and its pass is recorded. When piece n of all the
    blocks that it reads is there, the pass is sent to the parity engine for piece n alone. Every
    such pass reads only what is there, so none waits in the engine for a drive.

    When the reads have ended, the row is settled. If all were good, ``done`` says so once the last
    piece has been worked out, and the row goes on as if it had sent the pass itself. If not,
    ``done`` says so once no piece is to come and no pass is under way. Nothing of the row's lines
    is then read or written any more, and nobody refers to the seat.

    Passes of other rows are let through between those of pieces, taking turns. ``whole`` and its
    answers pass in no time. The first step of a piece's pass comes 5 cycles after the last
    ``piece`` was offered; each step takes 2 cycles. Without ``early_rows`` there is no seat.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    free
        There is a seat.
    seat
        Which is the next.
    array
        With ``array_shares``: whose row wants a seat.
    several
        With ``array_shares``: there are several arrays. Then one of them may have half of the seats
        at most, as drives that hang keep them.
    claim
        A strobe: a row takes the seat.
    slot
        Its row slot.
    reads
        It reads as many blocks as this has bits.
    record
        A strobe: the next step of the pass of a row. All of its steps come in order, before the row
        is settled.
    recorded
        That step.
    record_seat
        The seat of that row.
    settle
        A strobe: the reads of a row have ended.
    settle_seat
        The seat of that row.
    good
        All its blocks are in their lines.
    piece
        Pieces that have landed, of rows that have a seat, until `PIECE_CYCLES` after their reads
        have ended. They are taken within 4 cycles whatever else waits.
    whole
        Steps of other rows' passes.
    step
        Steps to the parity engine.
    pass_done
        Answers of the parity engine.
    done
        Answers to the rows: of settled ones, and of passes that came by ``whole``.
    busy
        Something moves.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "free": Out(1),
                "seat": Out(early_seat(config)),
                "array": In(config.array_bits),
                "several": In(1),
                "claim": In(1),
                "slot": In(config.row_slot_bits),
                "reads": In(config.ports),
                "record": In(1),
                "recorded": In(step(config)),
                "record_seat": In(early_seat(config)),
                "settle": In(1),
                "settle_seat": In(early_seat(config)),
                "good": In(1),
                "piece": In(stream.Signature(piece(config))),
                "whole": In(stream.Signature(step(config))),
                "step": Out(stream.Signature(step(config))),
                "pass_done": In(stream.Signature(pass_done(config))),
                "done": Out(stream.Signature(pass_done(config))),
                "busy": Out(1),
            }
        )
        if config.early_rows:
            self._make_seats(config)

    def _make_seats(self, config: Config) -> None:
        """What is kept of each seat."""
        seats = config.early_rows
        self._count = PieceCount(config=config)
        self._pieces = Queue(piece(config), seats * PIECES)  # to be worked out
        self._slots = Table(config.row_slot_bits, seats)
        # Recorded passes. What differs from piece to piece is not kept.
        self._kept = data.StructLayout(
            {name: field.shape for name, field in step(config) if name not in ("index", "piece")}
        )
        self._position_bits = bits_for_count(config.ports + config.parities + 1)
        self._steps = Table(self._kept, seats << self._position_bits)

        # A bit a seat.
        self._taken = Signal(seats)
        self._known = Signal(seats)  # its pass has been recorded
        self._settled = Signal(seats)
        self._all_good = Signal(seats)  # it has been settled well
        self._last_done = Signal(seats)  # the last piece has been worked out
        self._faulty = Signal(seats)  # a piece could not be worked out
        self._over = Signal(seats)  # the row can go on
        # Passes of each seat that are queued or in the engine.
        self._outstanding = [
            Signal(range(PIECES + 1), name=f"outstanding_{n}") for n in range(seats)
        ]

        # What happens: the end of a recorded pass, the end of a piece's pass, and seats that are
        # given back.
        self._record_ends = self.record & _ends(self.recorded)
        answer = self.pass_done.payload
        self._of_whole = self.pass_done.valid & ~answer.piece.any
        self._of_piece = self.pass_done.valid & answer.piece.any
        self._ended = Mux(self._of_piece, 1 << answer.index[: len(self.seat)], 0)
        self._released = Signal(seats)

    def elaborate(self, platform) -> Module:
        m = Module()
        if not self._config.early_rows:
            connect(m, flipped(self.whole), flipped(self.step))
            connect(m, flipped(self.pass_done), flipped(self.done))
            return m
        m.submodules.count = self._count
        m.submodules.pieces = self._pieces
        m.submodules.slots = self._slots
        m.submodules.steps = self._steps
        self._take_seats(m)
        self._record_passes(m)
        repeating = self._repeat_passes(m)
        self._count_passes(m)
        resting = self._find_rows_that_are_over(m)
        answering = self._answer(m)
        self._note_seats(m)
        m.d.comb += self.busy.eq(
            Cat(
                self._count.busy,
                resting,
                self._pieces.level != 0,
                repeating,
                self._over.any(),
                answering,
            ).any()
        )
        return m

    def _take_seats(self, m: Module) -> None:
        """Seats for rows, and the pieces that rows with a seat wait for."""
        count, pieces = self._count, self._pieces
        connect(m, flipped(self.piece), count.piece)
        m.d.comb += [
            self.free.eq(~self._taken.all() & ~self._has_its_share(m)),
            self.seat.eq(lowest_bit(m, ~self._taken, "lowest")),
            count.begin.eq(self.claim),
            count.seat.eq(self.seat),
            count.reads.eq(self.reads),
            self._slots.write.address.eq(self.seat),
            self._slots.write.data.eq(self.slot),
            self._slots.write.enable.eq(self.claim),
            pieces.input.payload.eq(count.completed),
            pieces.input.valid.eq(count.whole),
        ]

    def _has_its_share(self, m: Module) -> Value:
        """Whether the array has as many seats as it may."""
        config, taken = self._config, self._taken
        if not config.array_shares:
            return Const(0)
        owners = [Signal(config.array_bits, name=f"owner_{n}") for n in range(len(taken))]
        for n, owner in enumerate(owners):
            with m.If(self.claim & (self.seat == n)):
                m.d.sync += owner.eq(self.array)
        own = Cat(
            seat & (owner == self.array) for seat, owner in zip(taken, owners, strict=True)
        )
        return self.several & (ones(own) >= max(1, len(taken) // 2))

    def _record_passes(self, m: Module) -> None:
        """The pass of each seat, step by step."""
        write = self._steps.write
        record_position = Signal(self._position_bits)
        m.d.comb += [
            write.address.eq(Cat(record_position, self.record_seat)),
            write.enable.eq(self.record),
            *(write.data[name].eq(self.recorded[name]) for name, _ in self._kept),
        ]
        with m.If(self.record):
            m.d.sync += record_position.eq(Mux(self._record_ends, 0, record_position + 1))

    def _repeat_passes(self, m: Module) -> Value:
        """Passes of other rows, and between them one for the oldest piece. Returns whether one for
        a piece is being sent."""
        whole, oldest = self.whole, self._pieces.output
        position = Signal(self._position_bits)
        inside = Signal()  # a pass of another row
        recorded = self._steps.reads[0].data
        turn = Mux(whole.valid, self.step.ready & _ends(whole.payload), ~inside)
        m.d.comb += [
            self.step.payload.eq(whole.payload),
            self._steps.reads[0].address.eq(Cat(position, oldest.payload.seat)),
        ]
        with m.FSM(name="repeat") as repeat:
            with m.State("PASS"):
                m.d.comb += [self.step.valid.eq(whole.valid), whole.ready.eq(self.step.ready)]
                with m.If(whole.valid & self.step.ready):
                    m.d.sync += inside.eq(~_ends(whole.payload))
                known = self._known.bit_select(oldest.payload.seat, 1)
                with m.If(oldest.valid & known & turn):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [
                    self.step.valid.eq(1),
                    *(self.step.payload[name].eq(recorded[name]) for name, _ in self._kept),
                    self.step.payload.index.eq(oldest.payload.seat),
                    self.step.payload.piece.any.eq(1),
                    self.step.payload.piece.number.eq(oldest.payload.number),
                ]
                with m.If(self.step.ready):
                    m.d.sync += position.eq(position + 1)
                    m.next = "FETCH"
                    with m.If(_ends(recorded)):
                        m.d.comb += oldest.ready.eq(1)
                        m.d.sync += position.eq(0)
                        m.next = "PASS"
        return ~repeat.ongoing("PASS")

    def _count_passes(self, m: Module) -> None:
        """How many passes of each seat are under way."""
        count = self._count
        for n, number in enumerate(self._outstanding):
            begins = count.whole & (count.completed.seat == n)
            m.d.sync += number.eq(number + begins - self._ended[n])

    def _find_rows_that_are_over(self, m: Module) -> Value:
        """Settled rows that can go on. Returns whether a row waits that may still be told of
        pieces."""
        # A row that has settled last may still be told of pieces until then.
        rest = Signal(range(PIECE_CYCLES + 1))
        with m.If(self.settle & ~self.good):
            m.d.sync += rest.eq(PIECE_CYCLES)
        with m.Elif(rest != 0):
            m.d.sync += rest.eq(rest - 1)
        calm = (rest == 0) & ~self._count.busy
        for n, outstanding in enumerate(self._outstanding):
            can_go_on = Mux(self._all_good[n], self._last_done[n], calm & _none(outstanding))
            m.d.comb += self._over[n].eq(self._settled[n] & can_go_on)
        return rest != 0

    def _answer(self, m: Module) -> Value:
        """Answers to settled rows, and those of the engine to others. Returns whether a settled
        row is being answered."""
        answer, slot_read = self.pass_done.payload, self._slots.reads[0]
        over_seat = lowest_bit(m, self._over, "over_seat")
        answered = Signal.like(self.seat)
        own = Signal()  # a settled row is answered, and not another one
        # An answer that was refused stays.
        chosen = Signal()
        held = Signal()
        last = Signal()
        m.d.comb += [
            self._released.eq(Mux(own & self.done.ready, 1 << answered, 0)),
            chosen.eq(Mux(held, last, ~self._of_whole)),
            self.done.payload.eq(answer),
            self.pass_done.ready.eq(self._of_piece | (self.done.ready & ~chosen)),
            slot_read.address.eq(answered),
        ]
        m.d.sync += [held.eq(self.done.valid & ~self.done.ready), last.eq(chosen)]
        with m.FSM(name="answer") as answering:
            with m.State("WATCH"):
                m.d.comb += [
                    self.done.valid.eq(self._of_whole),
                    slot_read.address.eq(over_seat),
                ]
                with m.If(self._over.any()):
                    m.d.sync += answered.eq(over_seat)
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += [self.done.valid.eq(1), own.eq(chosen)]
                with m.If(chosen):
                    faulty = (self._all_good & self._faulty).bit_select(answered, 1)
                    m.d.comb += [
                        self.done.payload.eq(0),
                        self.done.payload.index.eq(slot_read.data),
                        self.done.payload.error.eq(faulty),
                    ]
                    with m.If(self.done.ready):
                        m.next = "WATCH"
        return ~answering.ongoing("WATCH")

    def _note_seats(self, m: Module) -> None:
        """What becomes of the seats: nothing is left of those that are given back."""
        answer = self.pass_done.payload
        is_last = answer.piece.number == PIECES - 1
        for flags, added in (
            (self._taken, Mux(self.claim, 1 << self.seat, 0)),
            (self._known, Mux(self._record_ends, 1 << self.record_seat, 0)),
            (self._settled, Mux(self.settle, 1 << self.settle_seat, 0)),
            (self._all_good, Mux(self.settle & self.good, 1 << self.settle_seat, 0)),
            (self._last_done, Mux(is_last, self._ended, 0)),
            (self._faulty, Mux(answer.error, self._ended, 0)),
        ):
            m.d.sync += flags.eq((flags & ~self._released) | added)
        m.d.sync += Assert(
            ~self.piece.valid | self._taken.bit_select(self.piece.payload.seat, 1),
            "a piece of a row that has left its seat",
        )


def _none(passes):
    """Whether no pass of a row is queued or in the engine."""
    return passes == 0


def _ends(one):
    """Whether a step is the last of its pass."""
    return (one.kind == StepKind.OUTPUT) & one.last
