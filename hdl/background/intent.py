"""Write-intent bitmap: which chunks of an array a member that was away may have missed."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.background.epochs import Epochs, IdleEpoch
from hdl.background.rows import array_row, stretch
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.intention import WriteEvents, intention
from hdl.flow.marks import BIT_BITS, WORD_BITS, Marks, chunk_shift, marks_word
from hdl.kit.optional import optional
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table, TableRead

EVENTS = 16
"""Events that wait while a bitmap is swept or searched."""


class Task(enum.Enum, shape=3):
    """What a row's chunk is worked out for."""

    BEGIN = 0
    """To mark it, because the row is about to be written."""
    RETIRE = 1
    """To mark it again, because the row slot has been given back."""
    FILL = 2
    """To mark all chunks of an array, or none."""
    SEARCH = 3
    """To find the next marked chunks."""
    LIMIT = 4
    """To drop marks of the chunks before it."""


def tally(config: Config) -> data.StructLayout:
    """Chunks of an array that are marked, and log2 of the rows of a chunk."""
    return data.StructLayout({"marked": config.chunk_bits + 1, "shift": 6})


def event(config: Config) -> data.StructLayout:
    """A row is about to be written, or with ``retires`` its slot has been given back."""
    return data.StructLayout({"retires": 1, "row": intention(config)})


def flight(config: Config) -> data.StructLayout:
    """What a row slot writes, if ``any``: in which chunk, and in which epoch that began. With
    `Config.durable_marks`: whether it is a ``walk`` that writes it."""
    return data.StructLayout(
        {"any": 1, "epoch": 1, "array": config.array_bits, "chunk": config.chunk_bits}
        | optional(config.durable_marks, {"walk": 1})
    )


def marking(config: Config) -> data.StructLayout:
    """A row of ``array`` is marked. With ``walk`` it is a walk's, which leaves it as consistent as
    it has found it."""
    return data.StructLayout({"array": config.array_bits, "walk": 1})


def _ports(config: Config) -> dict:
    """The ports of `Intent`."""
    idle = {
        "idle": In(IdleEpoch(config)),
        "marked": Out(config.arrays),
        "marking": Out(Pulse(marking(config))),
        "flight_read": In(TableRead(config.row_slot_bits, flight(config))),
        "partial": In(config.arrays),
        "filled": Out(Pulse(config.array_bits)),
    }
    return {
        **(idle if config.durable_marks else {}),
        "writes": In(WriteEvents(config)),
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
        "marks": In(Marks(config)),
        "load": In(stream.Signature(marks_word(config))),
        "sweeping": Out(1),
        "busy": Out(1),
    }


class Intent(wiring.Component):
    """Remembers which rows of each array may differ on a member that goes away, by chunks.

    Every row that is written is marked before a drive has the write. It stays marked until all
    drives have the write for good. A chunk is a power of two of rows, so many that
    ``config.intent_chunks`` chunks are enough for the array.

    A drive has a write for good once the drive was flushed. So there are two planes of marks. When
    an epoch of an array begins (`hdl.background.epochs`), new marks go to the other plane, and a
    row is marked again as it retires. When the epoch is over, the older marks are dropped. If
    something went wrong meanwhile, they join the newer ones instead.

    Hence a row is marked at any time while it is being written, and after that until every drive of
    the array has answered a flush. While a member is away, no mark is dropped. With
    `Config.durable_marks` those of chunks that have been rebuilt are dropped before the others have
    been. So what is marked of an array at any time is what its stale members may lack.

    Parameters
    ----------
    config
        Sizes, with ``intent_chunks``.

    Ports
    -----
    writes
        Rows that are written, and flushes. If the row slot of a row that is begun is already noted,
        this says nothing new. Such a row asks only if it has asked as it was noted. `EVENTS` of
        ``begun`` and ``retired`` wait inside.
    optimal, partial
        One bit per array, as in `Epochs`.
    settled
        As in `Epochs`.
    judged
        A pulse. Array ``judged_array`` exists and has ``judged_rows`` rows.
    judged_array
        That array.
    judged_rows
        Its number of rows.
    wipe
        A pulse, not while ``sweeping``. No row of array ``named`` was written, because the array is
        new. Rows that begin later are marked later.
    fill
        A pulse, not while ``sweeping``. All rows of array ``named`` count as written, because a
        member is new. Rows that begin later are marked later.
    named
        The array of ``wipe`` and ``fill``.
    ask
        A rebuild asks for the next marked rows of an array from a row on.
    answer
        These rows, up to the next chunk that is not marked. ``first`` is all ones if there are
        none. Marks that were made before the question are seen.
    tally_read
        `tally` of an array, for the host.
    marks
        With `Config.durable_marks`: for who keeps them on the drives.
    load
        With `Config.durable_marks`: marks that the drives of an array have. They are added.
    idle
        With `Config.durable_marks`: epochs of `hdl.background.idle_flush`.
    marked
        With `Config.durable_marks`: one bit per array. It has marks.
    marking
        With `Config.durable_marks`: a pulse. A row of this array is marked, as it is about to be
        written or as it retires, or marks are ``load``-ed.
    flight_read
        With `Config.durable_marks`: what each row slot writes.
    filled
        With `Config.durable_marks`, a pulse: after ``fill`` all rows of this array are marked.
    sweeping
        A bitmap is to be wiped or filled.
    busy
        It works.

    Rate: an event in 7 cycles. Events wait 2 cycles a word of the array's bitmap for a sweep, and
    at most 4 cycles a word and 50 more for an answer.
    """

    def __init__(self, *, config: Config):
        if not config.intent_chunks:
            raise ValueError("intent_chunks must not be 0")
        self._config = config
        self._words = config.intent_chunks // WORD_BITS
        super().__init__(_ports(config))
        chunk = config.chunk_bits
        self._epochs = Epochs(config=config)
        # Marks: a word of a plane of an array. What each row slot writes. Each array's last row,
        # and its number of marked chunks, both for the machine and for the host.
        self._durable = config.durable_marks
        self._marks = Table(WORD_BITS, 2 * config.arrays * self._words, reads=1 + self._durable)
        self._flights = Table(flight(config), config.rows, reads=1 + self._durable)
        self._lasts = Table(BLOCK_NUMBER_BITS, config.arrays, reads=2)
        self._counts = Table(chunk + 1, config.arrays, reads=2)
        # Events in the order in which they were taken.
        self._events = Queue(event(config), EVENTS)
        self._cleared = Signal(range(max(self._marks.depth, config.rows, 2)))

        # An array is to be swept: filled, or wiped.
        self._sweeps = Signal()
        self._fills = Signal()
        self._sweep_array = Signal(config.array_bits)

        # The task at hand: its row, and what its row slot was begun with.
        self._task = Signal(Task)
        self._slot = Signal(config.row_slot_bits)
        self._array = Signal(config.array_bits)
        self._row = Signal(BLOCK_NUMBER_BITS)
        self._beyond = Signal()  # the row is after the array's last
        self._written = Signal(flight(config))
        self._asks = Signal()  # who begins it waits for the mark
        # log2 of the rows of a chunk, the chunk of the row, and which plane has the newer marks.
        self._shift = Signal(range(BLOCK_NUMBER_BITS))
        self._chunk = Signal(chunk)
        self._word = self._chunk[BIT_BITS:]
        self._newer = Signal()
        self._bits = Signal(WORD_BITS)  # a word of marks that has been read

        # A search: the first marked chunk, then the first after it that is not.
        self._seeks_end = Signal()
        self._first_chunk = Signal(chunk)
        self._candidates = Signal(WORD_BITS)

        # An epoch that is over: one plane is folded into the other, word by word.
        self._folds = Signal()
        self._drops = Signal()
        self._fold_word = Signal.like(self._word)
        # Marks are dropped of chunks before this one, or of all; that has been worked out.
        self._limit = Signal(chunk)
        self._limits = Signal()
        self._is_measured = Signal()
        self._lost = Signal(WORD_BITS)  # marks that are dropped
        self._losses = Signal(range(WORD_BITS + 1))

    def _marks_again(self, written: data.View) -> Value:
        """Whether a row that retires is marked, ``written`` being what its slot was begun with."""
        return written.any

    def elaborate(self, platform) -> Module:
        m = Module()
        self._connect_epochs(m)
        self._connect_tables(m)
        self._queue_events(m)
        self._note_sweeps(m)
        self._find_chunk(m)
        m.d.sync += self._folds.eq(self._epochs.over)
        m.d.sync += self._losses.eq(sum(self._lost))
        with m.FSM(name="intend") as fsm:
            self._clear(m)
            self._rest(m)
            self._measure(m)
            self._place(m)
            self._mark(m)
            self._sweep(m)
            self._scan(m)
            self._test(m)
            self._stretch(m)
            self._fold(m)
            if self._durable:
                self._connect_marks(m)
                self._tell(m)
                self._load(m)
            m.d.comb += self.busy.eq(
                ~self._waits(fsm)
                | self._epochs.busy
                | self.wipe
                | self.fill
                | self.writes.flushes.flush
                | self.writes.flushes.completed
            )
        return m

    def _connect_epochs(self, m: Module) -> None:
        """What the epochs are told of flushes and arrays."""
        m.submodules.epochs = epochs = self._epochs
        connect(m, flipped(self.writes.flushes), epochs.flushes)
        if self._durable:
            connect(m, flipped(self.idle), epochs.idle)
            m.d.comb += epochs.partial.eq(self.partial)
        m.d.comb += [
            epochs.optimal.eq(self.optimal),
            epochs.settled.eq(self.settled),
        ]

    def _connect_tables(self, m: Module) -> None:
        """Where tables are read and written, and what the host sees of them."""
        m.submodules.marks = self._marks
        m.submodules.flights = flights = self._flights
        m.submodules.lasts = lasts = self._lasts
        m.submodules.counts = counts = self._counts
        shown, asked = self.tally_read.data, self.tally_read.address
        if self._durable:
            with m.If(counts.write.enable):
                m.d.sync += self.marked.bit_select(self._array, 1).eq(counts.write.data != 0)
        m.d.comb += [
            lasts.write.address.eq(self.judged_array),
            lasts.write.data.eq(self.judged_rows - 1),
            lasts.write.enable.eq(self.judged),
            lasts.reads[1].address.eq(asked),
            counts.reads[1].address.eq(asked),
            shown.marked.eq(counts.reads[1].data),
            shown.shift.eq(chunk_shift(m, lasts.reads[1].data, self._config, "shown_shift")),
            flights.reads[0].address.eq(self._slot),
            flights.write.address.eq(self._slot),
            lasts.reads[0].address.eq(self._array),
            counts.reads[0].address.eq(self._array),
            counts.write.address.eq(self._array),
        ]

    def _queue_events(self, m: Module) -> None:
        """Rows that begin or retire wait in one queue. Those that retire go first."""
        m.submodules.events = events = self._events
        offered = Signal(event(self._config))
        self._waiting = Signal(event(self._config))
        m.d.comb += [
            offered.retires.eq(self.writes.retired.valid),
            offered.row.eq(self.writes.begun.payload),
            events.input.payload.eq(offered),
            events.input.valid.eq(self.writes.begun.valid | self.writes.retired.valid),
            self.writes.retired.ready.eq(events.input.ready),
            self.writes.begun.ready.eq(events.input.ready & ~self.writes.retired.valid),
            self._waiting.eq(events.output.payload),
        ]
        with m.If(self.writes.retired.valid):
            m.d.comb += offered.row.slot.eq(self.writes.retired.payload)

    def _note_sweeps(self, m: Module) -> None:
        """Notes an array that is new, or has a member that is."""
        m.d.comb += self.sweeping.eq(self._sweeps)
        with m.If(self.wipe | self.fill):
            m.d.sync += [
                self._sweeps.eq(1),
                self._fills.eq(self.fill),
                self._sweep_array.eq(self.named),
            ]

    def _find_chunk(self, m: Module) -> None:
        """The lowest chunk of the word from ``chunk`` on that is marked, or that is not."""
        above = Signal(WORD_BITS)
        m.d.comb += [
            above.eq(Const((1 << WORD_BITS) - 1) << self._chunk[:BIT_BITS]),
            self._candidates.eq(
                (self._bits ^ self._seeks_end.replicate(WORD_BITS)) & above
            ),
        ]
        self._lowest = lowest_bit(m, self._candidates, "lowest")

    # Words of the bitmap: a word of a plane of the array at hand.

    def _look(self, m: Module, plane: Value, word: Value) -> None:
        """Reads a word, which is there in the next state."""
        m.d.comb += self._marks.reads[0].address.eq(Cat(word, self._array, plane))

    def _store(self, m: Module, plane: Value, word: Value, marks) -> None:
        """Writes a word."""
        m.d.comb += self._marks.store(address=Cat(word, self._array, plane), data=marks)

    @property
    def _read(self) -> Value:
        """The word that was read."""
        return self._marks.reads[0].data

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: nothing is marked, and no row slot writes anything."""
        marks, rows = self._marks, self._config.rows
        with m.State("CLEAR"):
            for table in (marks, self._flights, self._counts):
                m.d.comb += table.store(address=self._cleared, data=0)
            m.d.sync += self._cleared.eq(self._cleared + 1)
            with m.If(self._cleared == max(marks.depth, rows) - 1):
                m.next = "REST"

    def _rest(self, m: Module) -> None:
        """The state REST: what is to be done next, most urgent first."""
        waiting, epochs = self._waiting, self._epochs
        with m.State("REST"):
            m.d.sync += [
                self._task.eq(Mux(waiting.retires, Task.RETIRE, Task.BEGIN)),
                self._slot.eq(waiting.row.slot),
                self._array.eq(waiting.row.array),
                self._row.eq(waiting.row.row),
                self._chunk.eq(0),
                self._asks.eq(~waiting.retires & waiting.row.asks),
            ]
            with m.If(self._sweeps):
                m.d.sync += [self._array.eq(self._sweep_array), self._task.eq(Task.FILL)]
                m.next = "LOOK"
            with m.Elif(self._events.output.valid):
                m.d.comb += self._events.output.ready.eq(1)
                m.next = "LOOK"
            with m.Elif(self.ask.valid):
                m.d.comb += self.ask.ready.eq(1)
                m.d.sync += [
                    self._task.eq(Task.SEARCH),
                    self._array.eq(self.ask.payload.array),
                    self._row.eq(self.ask.payload.row),
                ]
                m.next = "LOOK"
            with m.Elif(self._folds):
                m.d.sync += [
                    self._array.eq(epochs.array),
                    self._newer.eq(epochs.planes.bit_select(epochs.array, 1)),
                ]
                with m.If(self._fold_word == 0):
                    m.d.sync += self._drops.eq(epochs.drops)
                m.next = "FOLD"
                if self._durable:
                    with m.If(epochs.limited & ~self._is_measured):
                        m.d.sync += [self._task.eq(Task.LIMIT), self._row.eq(epochs.rows)]
                        m.next = "LOOK"
            if self._durable:
                loaded = self.load.payload.array
                with m.Elif(self.load.valid):
                    m.d.sync += [
                        self._array.eq(loaded),
                        self._newer.eq(epochs.planes.bit_select(loaded, 1)),
                    ]
                    m.next = "LOAD"

    def _measure(self, m: Module) -> None:
        """The states LOOK and MEASURE: how large the chunks of the array are."""
        last_row = self._lasts.reads[0].data
        with m.State("LOOK"):
            m.next = "MEASURE"

        with m.State("MEASURE"):
            m.d.sync += [
                self._shift.eq(chunk_shift(m, last_row, self._config, "measured")),
                self._written.eq(self._flights.reads[0].data),
                self._beyond.eq(self._row > last_row),
            ]
            with m.If(self._task == Task.FILL):
                m.d.sync += self._row.eq(last_row)
            m.next = "PLACE"

    def _place(self, m: Module) -> None:
        """The state PLACE: the chunk of the row, and what is to be done with it."""
        row, written, epochs = self._row, self._written, self._epochs
        flights, found = self._flights, self.answer.payload
        with m.State("PLACE"):
            m.d.sync += [
                self._chunk.eq(row >> self._shift),
                self._newer.eq(epochs.planes.bit_select(self._array, 1)),
            ]
            new_flight = flights.write.data
            m.d.comb += [
                new_flight.epoch.eq(epochs.number),
                new_flight.array.eq(self._array),
                new_flight.chunk.eq(row >> self._shift),
                new_flight.walk.eq(~self._asks),
                epochs.retired_epoch.eq(written.epoch),
            ]
            m.next = "READ"
            with m.Switch(self._task):
                with m.Case(Task.BEGIN):
                    # The mark and the count are of the same epoch.
                    m.d.comb += [
                        new_flight.any.eq(1),
                        flights.write.enable.eq(~written.any),
                        epochs.takes.eq(~written.any),
                    ]
                    with m.If(written.any):
                        if self._durable:
                            m.d.sync += Assert(~(self._asks & written.walk), "a walk asks")
                        m.next = "REST"
                        self._answer(m)
                with m.Case(Task.RETIRE):
                    m.d.comb += [flights.write.enable.eq(1), epochs.retires.eq(written.any)]
                    m.d.sync += [
                        self._chunk.eq(written.chunk),
                        self._array.eq(written.array),
                        self._newer.eq(epochs.planes.bit_select(written.array, 1)),
                    ]
                    with m.If(~self._marks_again(written)):
                        m.next = "REST"
                with m.Case(Task.FILL):
                    m.next = "COUNT"
                if self._durable:
                    with m.Case(Task.LIMIT):
                        m.d.sync += [
                            self._limit.eq(row >> self._shift),
                            self._limits.eq(~self._beyond),
                            self._is_measured.eq(1),
                        ]
                        m.next = "REST"
                with m.Case(Task.SEARCH):
                    m.d.sync += self._seeks_end.eq(0)
                    m.d.sync += [found.first.eq(0), found.end.eq(0)]
                    m.next = "SCAN"
                    with m.If(self._beyond):
                        m.d.sync += found.first.eq(~0)
                        m.next = "ANSWER"

    def _mark(self, m: Module) -> None:
        """The states READ to MARK: the chunk is marked in the newer plane, and counted if new."""
        counts, bits = self._counts, self._bits
        mark = Signal(WORD_BITS)
        m.d.comb += mark.eq(1 << self._chunk[:BIT_BITS])
        with m.State("READ"):
            self._look(m, self._newer, self._word)
            m.next = "READ-OLDER"

        with m.State("READ-OLDER"):
            self._look(m, ~self._newer, self._word)
            m.d.sync += bits.eq(self._read)
            m.next = "MARK"

        with m.State("MARK"):
            if self._durable:
                retires = self._task == Task.RETIRE
                m.d.comb += [
                    self.marking.valid.eq(1),
                    self.marking.payload.walk.eq(Mux(retires, self._written.walk, ~self._asks)),
                ]
            self._store(m, self._newer, self._word, bits | mark)
            m.d.comb += [
                counts.write.data.eq(counts.reads[0].data + 1),
                counts.write.enable.eq(((bits | self._read) & mark) == 0),
            ]
            m.next = "REST"
            self._answer(m)

    def _sweep(self, m: Module) -> None:
        """The states COUNT to SWEEP-OLDER: all marks of an array, or none."""
        fills, chunk, word = self._fills, self._chunk, self._word
        with m.State("COUNT"):
            m.d.comb += self._counts.store(data=Mux(fills, chunk + 1, 0))
            m.d.sync += [self._first_chunk.eq(chunk), chunk.eq(0)]
            m.next = "SWEEP"

        with m.State("SWEEP"):
            last_word, last_bit = self._first_chunk[BIT_BITS:], self._first_chunk[:BIT_BITS]
            some = Signal(WORD_BITS)
            m.d.comb += some.eq(
                Mux(
                    word == last_word,
                    (2 << last_bit) - 1,
                    (word < last_word).replicate(WORD_BITS),
                )
            )
            self._store(m, self._newer, word, Mux(fills, some, 0))
            m.next = "SWEEP-OLDER"

        with m.State("SWEEP-OLDER"):
            self._store(m, ~self._newer, word, 0)
            m.d.sync += chunk.eq(chunk + WORD_BITS)
            m.next = "SWEEP"
            with m.If(word == self._words - 1):
                m.d.sync += self._sweeps.eq(0)
                if self._durable:
                    m.d.comb += self.filled.valid.eq(fills)
                m.next = "REST"

    def _scan(self, m: Module) -> None:
        """The states SCAN to JOIN of a search: a word of marks, of both planes."""
        with m.State("SCAN"):
            self._look(m, self._newer, self._word)
            m.next = "SCAN-OLDER"

        with m.State("SCAN-OLDER"):
            self._look(m, ~self._newer, self._word)
            m.d.sync += self._bits.eq(self._read)
            m.next = "JOIN"

        with m.State("JOIN"):
            m.d.sync += self._bits.eq(self._bits | self._read)
            m.next = "TEST"

    def _test(self, m: Module) -> None:
        """The state TEST of a search: whether the word has the chunk that is looked for."""
        word, found, seeks_end = self._word, self.answer.payload, self._seeks_end
        chunk, candidate = self._chunk, Cat(self._lowest, self._word)
        with m.State("TEST"):
            with m.If(self._candidates.any()):
                m.d.sync += [chunk.eq(candidate), seeks_end.eq(1)]
                with m.If(~seeks_end):
                    m.d.sync += self._first_chunk.eq(candidate)
                with m.Else():
                    m.d.sync += found.end.eq(candidate)
                    m.next = "STRETCH"
            with m.Else():
                m.d.sync += chunk.eq(Cat(Const(0, BIT_BITS), word + 1))
                m.next = "SCAN"
                with m.If(word == self._words - 1):
                    # ``end`` stays 0: up to the last row.
                    m.next = "STRETCH"
                    with m.If(~seeks_end):
                        m.d.sync += found.first.eq(~0)
                        m.next = "ANSWER"

    def _stretch(self, m: Module) -> None:
        """The states STRETCH to ANSWER of a search: chunks become rows."""
        row, shift, found = self._row, self._shift, self.answer.payload
        with m.State("STRETCH"):
            m.d.sync += found.first.eq(self._first_chunk)
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

    def _fold(self, m: Module) -> None:
        """The states FOLD to FOLD-EMPTY: a word of an epoch that is over.

        The older marks are dropped, or join the newer ones.
        """
        word, newer, bits = self._fold_word, self._newer, self._bits
        with m.State("FOLD"):
            self._look(m, ~newer, word)
            m.next = "FOLD-NEWER"

        with m.State("FOLD-NEWER"):
            self._look(m, newer, word)
            m.d.sync += bits.eq(self._read)
            m.next = "FOLD-STORE"

        with m.State("FOLD-STORE"):
            dropped = Mux(self._drops, bits, 0)
            if self._durable:
                dropped &= self._rebuilt_chunks
            self._store(m, newer, word, self._read | (bits & ~dropped))
            m.d.comb += self._lost.eq(dropped & ~self._read)
            m.next = "FOLD-EMPTY"

        with m.State("FOLD-EMPTY"):
            self._store(m, ~newer, word, 0)
            m.d.comb += self._counts.store(data=self._counts.reads[0].data - self._losses)
            m.d.sync += word.eq(word + 1)
            m.next = "REST"
            with m.If(word == self._words - 1):
                m.d.comb += self._epochs.closed.eq(1)
                m.d.sync += [word.eq(0), self._folds.eq(0), self._is_measured.eq(0)]

    @property
    def _rebuilt_chunks(self) -> Value:
        """Chunks of the word at hand whose marks an epoch makes needless."""
        word, last = self._fold_word, self._limit[BIT_BITS:]
        before = ((Const(1) << self._limit[:BIT_BITS]) - 1)[:WORD_BITS]
        some = Mux(word < last, ~Const(0, WORD_BITS), Mux(word == last, before, 0))
        return Mux(self._epochs.limited & self._limits, some, ~Const(0, WORD_BITS))

    def _connect_marks(self, m: Module) -> None:
        """What those see who keep the marks on the drives."""
        marks, epochs = self.marks, self._epochs
        told = marks.marked.payload
        m.d.comb += [
            self._marks.reads[1].address.eq(marks.read.address),
            marks.read.data.eq(self._marks.reads[1].data),
            marks.planes.eq(epochs.planes),
            marks.dropped.valid.eq(epochs.closed & self._drops),
            marks.dropped.payload.eq(self._array),
            self.filled.payload.eq(self._array),
            self.marking.payload.array.eq(self._array),
            self._flights.reads[1].address.eq(self.flight_read.address),
            self.flight_read.data.eq(self._flights.reads[1].data),
            told.slot.eq(self._slot),
            told.array.eq(self._array),
            told.chunk.eq(self._chunk),
        ]

    def _answer(self, m: Module) -> None:
        """Ends a state, after the row has been marked: whoever asks is told."""
        if self._durable:
            with m.If((self._task == Task.BEGIN) & self._asks):
                m.next = "TELL"

    def _tell(self, m: Module) -> None:
        """The state TELL: the row is marked, and asks."""
        with m.State("TELL"):
            m.d.comb += self.marks.marked.valid.eq(1)
            with m.If(self.marks.marked.ready):
                m.next = "REST"

    def _load(self, m: Module) -> None:
        """The states LOAD to LOAD-COUNT: a word of marks is added to the newer ones."""
        given, newer, bits, counts = self.load, self._newer, self._bits, self._counts
        word, marks = given.payload.word, given.payload.marks
        with m.State("LOAD"):
            self._look(m, newer, word)
            m.next = "LOAD-OLDER"

        with m.State("LOAD-OLDER"):
            self._look(m, ~newer, word)
            m.d.sync += bits.eq(self._read)
            m.next = "LOAD-STORE"

        with m.State("LOAD-STORE"):
            m.d.comb += self.marking.valid.eq(1)
            self._store(m, newer, word, bits | marks)
            m.d.comb += self._lost.eq(marks & ~(bits | self._read))
            m.next = "LOAD-COUNT"

        with m.State("LOAD-COUNT"):
            m.d.comb += [
                given.ready.eq(1),
                *counts.store(data=counts.reads[0].data + self._losses),
            ]
            m.next = "REST"

    def _waits(self, fsm) -> Value:
        """It waits for somebody else."""
        events = self._events
        idle = (
            ~self._sweeps
            & ~events.output.valid
            & ~self.ask.valid
            & ~self._folds
            & ~self._epochs.over
            & ~self.load.valid
        )
        filling = (events.level != 0) | events.input.valid
        return (fsm.ongoing("REST") & idle & ~filling) | (
            fsm.ongoing("ANSWER") & ~self.answer.ready & ~filling
        )


class NoIntent(wiring.Component):
    """What is there instead of `Intent` without ``intent_chunks``: no bitmap, so no marks.

    The ports are those of `Intent`. Nothing is taken, answered or swept.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        super().__init__(_ports(config))

    def elaborate(self, platform) -> Module:
        return Module()
