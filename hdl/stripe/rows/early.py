"""Works out lost blocks piece by piece while the blocks that they follow from are landing."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import PIECES, Config, bits_for_count
from hdl.flow.parity_pass import StepKind, pass_done, step
from hdl.flow.piece import PIECE_CYCLES, early_seat, piece
from hdl.kit.bits import lowest_bit, ones
from hdl.kit.queue import Queue
from hdl.stripe.rows.piece_count import PieceCount


class Early(wiring.Component):
    """Repeats the recovery pass of a row for each piece of its blocks, as soon as that has landed.

    A row takes a seat, its operations say which, and its pass is recorded. When piece n of all the
    blocks that it reads is there, the pass is sent to the parity engine for piece n alone. Every
    such pass reads only what is there, so none waits in the engine for a drive. When the reads have
    ended, the row is settled. If all were good, ``done`` says so once the last piece has been
    worked out; the row goes on as if it had sent the pass itself. If not, ``done`` says so once no
    piece is to come and no pass is under way: nothing of the row's lines is then read or written
    any more, and nobody refers to the seat.

    Passes of other rows are let through between those of pieces, taking turns.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    free, seat
        There is a seat, and which is the next.
    array, several
        With ``array_shares``: whose row wants a seat, and whether there are several arrays. Then
        half of the seats are all that one of them may have, as drives that hang keep them.
    claim, slot, reads
        A strobe: row slot ``slot`` takes the seat; it reads as many blocks as ``reads`` has bits.
    record, recorded, record_seat
        A strobe: the next step of the pass of the row in ``record_seat``; all of its steps in
        order, before the row is settled.
    settle, settle_seat, good
        A strobe: the reads of the row have ended, and whether all their blocks are in their lines.
    piece
        Pieces that have landed, of rows that have a seat, until `PIECE_CYCLES` after their reads
        have ended; taken within 4 cycles whatever else waits.
    whole, step
        Steps of other rows' passes, and those to the parity engine.
    pass_done, done
        Answers of the parity engine, and those to the rows: of settled ones, and of passes that
        came by ``whole``.
    busy
        Something moves.

    Latency: the first step of a piece's pass 5 cycles after the last ``piece`` was offered; a step
    in 2 cycles. ``whole`` and its answers pass in no time. Without ``early_rows`` there is no seat.
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

    def _has_its_share(self, m: Module, taken: Signal) -> Value:
        """Whether the array has as many seats as it may."""
        config = self._config
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        if not config.early_rows:
            connect(m, flipped(self.whole), flipped(self.step))
            connect(m, flipped(self.pass_done), flipped(self.done))
            return m
        seats = config.early_rows
        m.submodules.count = count = PieceCount(config=config)
        connect(m, flipped(self.piece), count.piece)
        m.submodules.queue = queue = Queue(piece(config), seats * PIECES)
        m.submodules.slots = slots = Memory(shape=config.row_slot_bits, depth=seats, init=[])
        slot_read, slot_write = slots.read_port(), slots.write_port()

        # Seats: taken, their pass is known, settled, and well; the last piece worked out, not to be
        # worked out; passes queued or in the engine.
        taken, known, settled, good, last_done, faulty = (
            Signal(seats, name=name)
            for name in ("taken", "known", "settled", "all_good", "last_done", "faulty")
        )
        outstanding = [Signal(range(PIECES + 1), name=f"outstanding_{n}") for n in range(seats)]
        m.d.comb += [
            self.free.eq(~taken.all() & ~self._has_its_share(m, taken)),
            self.seat.eq(lowest_bit(m, ~taken, "lowest")),
            count.begin.eq(self.claim),
            count.seat.eq(self.seat),
            count.reads.eq(self.reads),
            slot_write.addr.eq(self.seat),
            slot_write.data.eq(self.slot),
            slot_write.en.eq(self.claim),
            queue.input.payload.eq(count.completed),
            queue.input.valid.eq(count.whole),
        ]

        # Recorded passes. What differs from piece to piece is not kept.
        kept = data.StructLayout(
            {name: field.shape for name, field in step(config) if name not in ("index", "piece")}
        )
        position_bits = bits_for_count(config.ports + config.parities + 1)
        m.submodules.steps = steps = Memory(shape=kept, depth=seats << position_bits, init=[])
        step_read, step_write = steps.read_port(), steps.write_port()
        record_position = Signal(position_bits)
        m.d.comb += [
            step_write.addr.eq(Cat(record_position, self.record_seat)),
            step_write.en.eq(self.record),
            *(step_write.data[name].eq(self.recorded[name]) for name, _ in kept),
        ]
        record_ends = self.record & _ends(self.recorded)
        with m.If(self.record):
            m.d.sync += record_position.eq(Mux(record_ends, 0, record_position + 1))

        # Out: passes of others, and between them one for the oldest piece.
        position = Signal(position_bits)
        inside = Signal()
        head = queue.output.payload
        turn = Mux(self.whole.valid, self.step.ready & _ends(self.whole.payload), ~inside)
        m.d.comb += [
            self.step.payload.eq(self.whole.payload),
            step_read.addr.eq(Cat(position, head.seat)),
        ]
        with m.FSM(name="repeat") as repeat:
            with m.State("PASS"):
                m.d.comb += [
                    self.step.valid.eq(self.whole.valid),
                    self.whole.ready.eq(self.step.ready),
                ]
                with m.If(self.whole.valid & self.step.ready):
                    m.d.sync += inside.eq(~_ends(self.whole.payload))
                with m.If(queue.output.valid & known.bit_select(head.seat, 1) & turn):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [
                    self.step.valid.eq(1),
                    *(self.step.payload[name].eq(step_read.data[name]) for name, _ in kept),
                    self.step.payload.index.eq(head.seat),
                    self.step.payload.piece.any.eq(1),
                    self.step.payload.piece.number.eq(head.number),
                ]
                with m.If(self.step.ready):
                    m.d.sync += position.eq(position + 1)
                    m.next = "FETCH"
                    with m.If(_ends(step_read.data)):
                        m.d.comb += queue.output.ready.eq(1)
                        m.d.sync += position.eq(0)
                        m.next = "PASS"

        # Answers of the engine.
        answer = self.pass_done.payload
        of_piece = self.pass_done.valid & answer.piece.any
        of_whole = self.pass_done.valid & ~answer.piece.any
        ended = Mux(of_piece, 1 << answer.index[: len(self.seat)], 0)
        is_last = answer.piece.number == PIECES - 1
        for n, number in enumerate(outstanding):
            begins = count.whole & (count.completed.seat == n)
            m.d.sync += number.eq(number + begins - ended[n])

        # Rows that are over.
        over = Signal(seats)
        over_seat = lowest_bit(m, over, "over_seat")
        answered = Signal.like(self.seat)
        own = Signal()
        released = Mux(own & self.done.ready, 1 << answered, 0)
        # Until then a row that has settled last may still be told of pieces.
        rest = Signal(range(PIECE_CYCLES + 1))
        with m.If(self.settle & ~self.good):
            m.d.sync += rest.eq(PIECE_CYCLES)
        with m.Elif(rest != 0):
            m.d.sync += rest.eq(rest - 1)
        calm = (rest == 0) & ~count.busy
        for n in range(seats):
            m.d.comb += over[n].eq(
                settled[n] & Mux(good[n], last_done[n], calm & _none(outstanding[n]))
            )
        chosen, held, last = Signal(), Signal(), Signal()
        m.d.comb += [
            # One that was refused stays.
            chosen.eq(Mux(held, last, ~of_whole)),
            self.done.payload.eq(answer),
            self.pass_done.ready.eq(of_piece | (self.done.ready & ~chosen)),
            slot_read.addr.eq(answered),
        ]
        m.d.sync += [held.eq(self.done.valid & ~self.done.ready), last.eq(chosen)]
        with m.FSM(name="answer") as answering:
            with m.State("WATCH"):
                m.d.comb += [self.done.valid.eq(of_whole), slot_read.addr.eq(over_seat)]
                with m.If(over.any()):
                    m.d.sync += answered.eq(over_seat)
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += [self.done.valid.eq(1), own.eq(chosen)]
                with m.If(chosen):
                    m.d.comb += [
                        self.done.payload.eq(0),
                        self.done.payload.index.eq(slot_read.data),
                        self.done.payload.error.eq((good & faulty).bit_select(answered, 1)),
                    ]
                    with m.If(self.done.ready):
                        m.next = "WATCH"

        m.d.sync += [
            taken.eq((taken & ~released) | Mux(self.claim, 1 << self.seat, 0)),
            known.eq((known & ~released) | Mux(record_ends, 1 << self.record_seat, 0)),
            settled.eq((settled & ~released) | Mux(self.settle, 1 << self.settle_seat, 0)),
            good.eq((good & ~released) | Mux(self.settle & self.good, 1 << self.settle_seat, 0)),
            last_done.eq((last_done & ~released) | Mux(is_last, ended, 0)),
            faulty.eq((faulty & ~released) | Mux(answer.error, ended, 0)),
        ]
        m.d.sync += Assert(
            ~self.piece.valid | taken.bit_select(self.piece.payload.seat, 1),
            "a piece of a row that has left its seat",
        )
        m.d.comb += self.busy.eq(
            Cat(
                count.busy,
                rest != 0,
                queue.level != 0,
                ~repeat.ongoing("PASS"),
                over.any(),
                ~answering.ongoing("WATCH"),
            ).any()
        )
        return m


def _none(passes):
    """Whether no pass of a row is queued or in the engine."""
    return passes == 0


def _ends(one):
    """Whether a step is the last of its pass."""
    return (one.kind == StepKind.OUTPUT) & one.last
