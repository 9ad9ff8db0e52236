"""Write-intent bitmap: which chunks of an array a member that was away may have missed."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.background.epochs import Epochs
from hdl.background.rows import array_row, flushing, stretch
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.host_command import completion
from hdl.flow.intention import intention
from hdl.kit.pick import lowest_set
from hdl.kit.queue import Queue
from hdl.kit.table import TableRead

BIT_BITS = 5
WORD_BITS = 1 << BIT_BITS
"""Chunks of a word of the bitmap."""

EVENTS = 16
"""Events that wait while a bitmap is swept or searched."""


class Task(enum.Enum, shape=2):
    """What a row's chunk is worked out for."""

    BEGIN = 0
    RETIRE = 1
    FILL = 2
    SEARCH = 3


def tally(config: Config) -> data.StructLayout:
    """Chunks of an array that are marked, and log2 of the rows of a chunk."""
    return data.StructLayout({"marked": config.chunk_bits + 1, "shift": 6})


class Intent(wiring.Component):
    """Remembers which rows of each array may differ on a member that goes away, by chunks.

    Every row that is written is marked before a drive has the write, and stays so until all drives
    have it for good. A chunk is as many rows, a power of two, as make ``config.intent_chunks`` of
    them enough for the array.

    What a drive has is for good once it was flushed. So there are two planes of marks: when an
    epoch of an array begins (`hdl.background.epochs`) new marks go to the other plane, and a row is
    marked again as it retires. When the epoch is over the older marks are dropped, or if something
    went wrong meanwhile they join the newer ones.

    Hence, at any time: a row that is being written, or was written and of which not every drive of
    the array has answered a flush since, is marked. While a member is away nothing is dropped.

    Parameters
    ----------
    config
        Sizes, with ``intent_chunks``.

    Ports
    -----
    begun, retired
        A row is about to be written (nothing new of one that is under way); a row slot has been
        given back. `EVENTS` of them wait inside.
    flush, flushing, completed, completion, optimal, settled
        Of `Epochs`.
    judged, judged_array, judged_rows
        A pulse: the array exists and has so many rows.
    wipe, fill, named, sweeping
        Pulses, not while ``sweeping``: no row of array ``named`` was written (it is new); all were
        (a member is). Rows that are begun later are marked later.
    ask, answer
        For a rebuild: the next marked rows of an array from a row on, up to the next chunk that is
        not. ``first`` all ones: there are none. Marks made before are seen.
    tally_read
        `tally` of an array, for the host.

    Rate: an event in 7 cycles. Events wait for a sweep 2 cycles a word of the array's bitmap, and
    for an answer at most 4 a word and 50.
    """

    def __init__(self, *, config: Config):
        if not config.intent_chunks:
            raise ValueError("intent_chunks must not be 0")
        self._config = config
        super().__init__(
            {
                "begun": In(stream.Signature(intention(config))),
                "retired": In(stream.Signature(config.row_slot_bits)),
                "flush": In(1),
                "flushing": In(flushing(config)),
                "completed": In(1),
                "completion": In(completion(config)),
                "optimal": In(config.arrays),
                "settled": In(1),
                "judged": In(1),
                "judged_array": In(config.array_bits),
                "judged_rows": In(BLOCK_NUMBER_BITS),
                "wipe": In(1),
                "fill": In(1),
                "named": In(config.array_bits),
                "ask": In(stream.Signature(array_row(config))),
                "answer": Out(stream.Signature(stretch())),
                "tally_read": In(TableRead(config.array_bits, tally(config))),
                "sweeping": Out(1),
                "busy": Out(1),
            }
        )

    def _marks_again(self, held: data.View) -> Value:
        """Whether a row that retires is marked, ``held`` being what its slot was begun with."""
        return held.any

    def elaborate(self, platform) -> Module:
        config = self._config
        chunk_bits = config.chunk_bits
        words = config.intent_chunks // WORD_BITS
        m = Module()
        m.submodules.epochs = epochs = Epochs(config=config)
        m.d.comb += [
            epochs.flush.eq(self.flush),
            epochs.flushing.eq(self.flushing),
            epochs.completed.eq(self.completed),
            epochs.completion.eq(self.completion),
            epochs.optimal.eq(self.optimal),
            epochs.settled.eq(self.settled),
        ]

        # Marks; what a row slot writes; each array's last row and number of marked chunks.
        flight = data.StructLayout(
            {"any": 1, "epoch": 1, "array": config.array_bits, "chunk": chunk_bits}
        )
        depth = 2 * config.arrays * words
        m.submodules.marks = marks = Memory(shape=WORD_BITS, depth=depth, init=[])
        m.submodules.flights = flights = Memory(shape=flight, depth=config.rows, init=[])
        m.submodules.lasts = lasts = Memory(
            shape=BLOCK_NUMBER_BITS, depth=config.arrays, init=[]
        )
        m.submodules.counts = counts = Memory(
            shape=chunk_bits + 1, depth=config.arrays, init=[]
        )
        read, write = marks.read_port(), marks.write_port()
        flight_read, flight_write = flights.read_port(), flights.write_port()
        last_read, last_write = lasts.read_port(), lasts.write_port()
        count_read, count_write = counts.read_port(), counts.write_port()
        shown_last, shown_count = lasts.read_port(), counts.read_port()

        def shift_for(last, name):
            """log2 of the rows of a chunk, combinational."""
            found = Signal(range(BLOCK_NUMBER_BITS), name=name)
            for index in range(chunk_bits, BLOCK_NUMBER_BITS):
                with m.If(last[index]):
                    m.d.comb += found.eq(index + 1 - chunk_bits)
            return found

        m.d.comb += [
            last_write.addr.eq(self.judged_array),
            last_write.data.eq(self.judged_rows - 1),
            last_write.en.eq(self.judged),
            shown_last.addr.eq(self.tally_read.address),
            shown_count.addr.eq(self.tally_read.address),
            self.tally_read.data.marked.eq(shown_count.data),
            self.tally_read.data.shift.eq(shift_for(shown_last.data, "shown_shift")),
        ]

        # Events in the order in which they were taken.
        event = data.StructLayout({"retires": 1, "row": intention(config)})
        m.submodules.events = events = Queue(event, EVENTS)
        offered, waiting = Signal(event), Signal(event)
        m.d.comb += [
            offered.retires.eq(self.retired.valid),
            offered.row.eq(self.begun.payload),
            events.input.payload.eq(offered),
            events.input.valid.eq(self.begun.valid | self.retired.valid),
            self.retired.ready.eq(events.input.ready),
            self.begun.ready.eq(events.input.ready & ~self.retired.valid),
            waiting.eq(events.output.payload),
        ]
        with m.If(self.retired.valid):
            m.d.comb += offered.row.slot.eq(self.retired.payload)

        # An array that is new, or has a member that is.
        sweeps, fills = Signal(), Signal()
        m.d.comb += self.sweeping.eq(sweeps)
        sweep_array = Signal(config.array_bits)
        with m.If(self.wipe | self.fill):
            m.d.sync += [sweeps.eq(1), fills.eq(self.fill), sweep_array.eq(self.named)]

        # What is at hand.
        task = Signal(Task)
        slot = Signal(config.row_slot_bits)
        array = Signal(config.array_bits)
        row = Signal(BLOCK_NUMBER_BITS)
        shift = Signal(range(BLOCK_NUMBER_BITS))
        beyond = Signal()
        held = Signal(flight)
        chunk = Signal(chunk_bits)
        word = chunk[BIT_BITS:]
        newer = Signal()
        bits = Signal(WORD_BITS)
        mark = Signal(WORD_BITS)
        m.d.comb += mark.eq(1 << chunk[:BIT_BITS])

        # A search: the first marked chunk, then the first after it that is not.
        seeks_end = Signal()
        first_chunk = Signal(chunk_bits)
        candidates = Signal(WORD_BITS)
        above = Signal(WORD_BITS)
        m.d.comb += [
            above.eq(Const((1 << WORD_BITS) - 1) << chunk[:BIT_BITS]),
            candidates.eq((bits ^ seeks_end.replicate(WORD_BITS)) & above),
        ]
        lowest = lowest_set(m, candidates, "lowest")
        found = self.answer.payload

        # An epoch that is over: one plane is folded into the other, word by word.
        fold_word = Signal.like(word)
        folds, drops = Signal(), Signal()
        m.d.sync += folds.eq(epochs.over)
        lost = Signal(WORD_BITS)
        losses = Signal(range(WORD_BITS + 1))
        m.d.sync += losses.eq(sum(lost))

        clear = Signal(range(max(depth, config.rows, 2)))
        m.d.comb += [
            flight_read.addr.eq(slot),
            flight_write.addr.eq(slot),
            last_read.addr.eq(array),
            count_read.addr.eq(array),
            count_write.addr.eq(array),
        ]

        def look(plane, place):
            m.d.comb += read.addr.eq(Cat(place, array, plane))

        def store(plane, place, value):
            m.d.comb += [
                write.addr.eq(Cat(place, array, plane)),
                write.data.eq(value),
                write.en.eq(1),
            ]

        with m.FSM(name="intend") as fsm:
            # Memories keep their contents over a reset.
            with m.State("CLEAR"):
                m.d.comb += [
                    write.addr.eq(clear),
                    write.en.eq(1),
                    flight_write.addr.eq(clear),
                    flight_write.en.eq(1),
                    count_write.addr.eq(clear),
                    count_write.en.eq(1),
                ]
                m.d.sync += clear.eq(clear + 1)
                with m.If(clear == max(depth, config.rows) - 1):
                    m.next = "REST"

            with m.State("REST"):
                m.d.sync += [
                    task.eq(Mux(waiting.retires, Task.RETIRE, Task.BEGIN)),
                    slot.eq(waiting.row.slot),
                    array.eq(waiting.row.array),
                    row.eq(waiting.row.row),
                    chunk.eq(0),
                ]
                with m.If(sweeps):
                    m.d.sync += [array.eq(sweep_array), task.eq(Task.FILL)]
                    m.next = "LOOK"
                with m.Elif(events.output.valid):
                    m.d.comb += events.output.ready.eq(1)
                    m.next = "LOOK"
                with m.Elif(self.ask.valid):
                    m.d.comb += self.ask.ready.eq(1)
                    m.d.sync += [
                        task.eq(Task.SEARCH),
                        array.eq(self.ask.payload.array),
                        row.eq(self.ask.payload.row),
                    ]
                    m.next = "LOOK"
                with m.Elif(folds):
                    m.d.sync += [
                        array.eq(epochs.array),
                        newer.eq(epochs.planes.bit_select(epochs.array, 1)),
                    ]
                    with m.If(fold_word == 0):
                        m.d.sync += drops.eq(epochs.drops)
                    m.next = "FOLD"

            # The chunk of a row.
            with m.State("LOOK"):
                m.next = "MEASURE"

            with m.State("MEASURE"):
                m.d.sync += [
                    shift.eq(shift_for(last_read.data, "measured")),
                    held.eq(flight_read.data),
                    beyond.eq(row > last_read.data),
                ]
                with m.If(task == Task.FILL):
                    m.d.sync += row.eq(last_read.data)
                m.next = "PLACE"

            with m.State("PLACE"):
                m.d.sync += [
                    chunk.eq(row >> shift),
                    newer.eq(epochs.planes.bit_select(array, 1)),
                ]
                flight_new = flight_write.data
                m.d.comb += [
                    flight_new.epoch.eq(epochs.number),
                    flight_new.array.eq(array),
                    flight_new.chunk.eq(row >> shift),
                    epochs.retired_epoch.eq(held.epoch),
                ]
                m.next = "READ"
                with m.Switch(task):
                    with m.Case(Task.BEGIN):
                        # The mark and the count are of the same epoch.
                        m.d.comb += [
                            flight_new.any.eq(1),
                            flight_write.en.eq(~held.any),
                            epochs.takes.eq(~held.any),
                        ]
                        with m.If(held.any):
                            m.next = "REST"
                    with m.Case(Task.RETIRE):
                        m.d.comb += [flight_write.en.eq(1), epochs.retires.eq(held.any)]
                        m.d.sync += [
                            chunk.eq(held.chunk),
                            array.eq(held.array),
                            newer.eq(epochs.planes.bit_select(held.array, 1)),
                        ]
                        with m.If(~self._marks_again(held)):
                            m.next = "REST"
                    with m.Case(Task.FILL):
                        m.next = "COUNT"
                    with m.Case(Task.SEARCH):
                        m.d.sync += seeks_end.eq(0)
                        m.d.sync += [found.first.eq(0), found.end.eq(0)]
                        m.next = "SCAN"
                        with m.If(beyond):
                            m.d.sync += found.first.eq(~0)
                            m.next = "ANSWER"

            # A mark.
            with m.State("READ"):
                look(newer, word)
                m.next = "READ-OLDER"

            with m.State("READ-OLDER"):
                look(~newer, word)
                m.d.sync += bits.eq(read.data)
                m.next = "MARK"

            with m.State("MARK"):
                store(newer, word, bits | mark)
                m.d.comb += [
                    count_write.data.eq(count_read.data + 1),
                    count_write.en.eq(((bits | read.data) & mark) == 0),
                ]
                m.next = "REST"

            # All marks of an array, or none.
            with m.State("COUNT"):
                m.d.comb += [
                    count_write.data.eq(Mux(fills, chunk + 1, 0)),
                    count_write.en.eq(1),
                ]
                m.d.sync += [first_chunk.eq(chunk), chunk.eq(0)]
                m.next = "SWEEP"

            with m.State("SWEEP"):
                last_word, last_bit = first_chunk[BIT_BITS:], first_chunk[:BIT_BITS]
                some = Signal(WORD_BITS)
                m.d.comb += some.eq(
                    Mux(
                        word == last_word,
                        (2 << last_bit) - 1,
                        (word < last_word).replicate(WORD_BITS),
                    )
                )
                store(newer, word, Mux(fills, some, 0))
                m.next = "SWEEP-OLDER"

            with m.State("SWEEP-OLDER"):
                store(~newer, word, 0)
                m.d.sync += chunk.eq(chunk + WORD_BITS)
                m.next = "SWEEP"
                with m.If(word == words - 1):
                    m.d.sync += sweeps.eq(0)
                    m.next = "REST"

            # A search.
            with m.State("SCAN"):
                look(newer, word)
                m.next = "SCAN-OLDER"

            with m.State("SCAN-OLDER"):
                look(~newer, word)
                m.d.sync += bits.eq(read.data)
                m.next = "JOIN"

            with m.State("JOIN"):
                m.d.sync += bits.eq(bits | read.data)
                m.next = "TEST"

            with m.State("TEST"):
                with m.If(candidates.any()):
                    m.d.sync += [chunk.eq(Cat(lowest, word)), seeks_end.eq(1)]
                    with m.If(~seeks_end):
                        m.d.sync += first_chunk.eq(Cat(lowest, word))
                    with m.Else():
                        m.d.sync += found.end.eq(Cat(lowest, word))
                        m.next = "STRETCH"
                with m.Else():
                    m.d.sync += chunk.eq(Cat(Const(0, BIT_BITS), word + 1))
                    m.next = "SCAN"
                    with m.If(word == words - 1):
                        # ``end`` stays 0: up to the last row.
                        m.next = "STRETCH"
                        with m.If(~seeks_end):
                            m.d.sync += found.first.eq(~0)
                            m.next = "ANSWER"

            with m.State("STRETCH"):
                m.d.sync += found.first.eq(first_chunk)
                m.next = "MULTIPLY"

            with m.State("MULTIPLY"):
                m.d.sync += [
                    shift.eq(shift - 1),
                    found.first.eq(found.first << 1),
                    found.end.eq(found.end << 1),
                ]
                with m.If(shift == 0):
                    m.d.sync += [
                        shift.eq(0),
                        found.first.eq(Mux(found.first < row, row, found.first)),
                        found.end.eq(found.end),
                    ]
                    m.next = "ANSWER"

            with m.State("ANSWER"):
                m.d.comb += self.answer.valid.eq(1)
                with m.If(self.answer.ready):
                    m.next = "REST"

            # A word of an epoch that is over.
            with m.State("FOLD"):
                look(~newer, fold_word)
                m.next = "FOLD-NEWER"

            with m.State("FOLD-NEWER"):
                look(newer, fold_word)
                m.d.sync += bits.eq(read.data)
                m.next = "FOLD-STORE"

            with m.State("FOLD-STORE"):
                store(newer, fold_word, read.data | Mux(drops, 0, bits))
                m.d.comb += lost.eq(Mux(drops, bits & ~read.data, 0))
                m.next = "FOLD-EMPTY"

            with m.State("FOLD-EMPTY"):
                store(~newer, fold_word, 0)
                m.d.comb += [
                    count_write.data.eq(count_read.data - losses),
                    count_write.en.eq(1),
                ]
                m.d.sync += fold_word.eq(fold_word + 1)
                m.next = "REST"
                with m.If(fold_word == words - 1):
                    m.d.comb += epochs.closed.eq(1)
                    m.d.sync += [fold_word.eq(0), folds.eq(0)]

            idle = ~sweeps & ~events.output.valid & ~self.ask.valid & ~folds & ~epochs.over
            filling = (events.level != 0) | events.input.valid
            waits = (fsm.ongoing("REST") & idle & ~filling) | (
                fsm.ongoing("ANSWER") & ~self.answer.ready & ~filling
            )
            m.d.comb += self.busy.eq(
                ~waits | epochs.busy | self.wipe | self.fill | self.flush | self.completed
            )
        return m
