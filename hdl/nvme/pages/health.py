"""Counters of the SMART / Health log and the entries of the error log, in one memory."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.flow.host_command import HostOpcode
from hdl.kit.optional import optional
from hdl.kit.pick import lowest_bit
from hdl.nvme.codes import (
    PARAMETER_LOCATIONS,
    STATUS_BITS,
    UNSPECIFIED_LOCATION,
    StatusCode,
    status_field,
)
from hdl.nvme.pages.log_memory import (
    HIGH,
    LOW,
    REST,
    SMART_WORDS,
    USED_WORDS,
    Counter,
    LogAccess,
    count_shift,
    error_entry,
    log_init,
    unit,
)
from hdl.nvme.records import BLOCK_COUNT_BITS, queue_bits

TICK_SHIFT = 16
"""A tick of the time counters is 2**16 clock cycles."""

AGE_BIT = TIME_BITS - 2
"""When this bit of the time changes, all times are added: long before differences wrap."""

NO_QUEUE = NO_COMMAND = 0xFFFF
"""Submission queue and command of an error that belongs to no command."""

TIMED = (
    Counter.POWER_ON_HOURS,
    Counter.BUSY_MINUTES,
    Counter.WARM_MINUTES,
    Counter.HOT_MINUTES,
)
"""Counters of the time for which a condition holds, in the order of ``conditions``."""


def note(config: Config) -> data.StructLayout:
    """How a command ended. ``counts``: it reached the data path, so the host's I/O counts it.
    ``sectors``: its blocks are 512-byte sectors (`Config.sector_emulation`)."""
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "identifier": 16,
            "status": STATUS_BITS,
            "nsid": 32,
            "block": 64,
            "counts": 1,
            "opcode": HostOpcode,
            "blocks": BLOCK_COUNT_BITS,
        }
        | optional(config.sector_emulation, {"sectors": 1})
    )


class Health(wiring.Component):
    """Keeps what Get Log Page 01h and 02h report (NVMe 1.4 sections 5.14.1.1 and 5.14.1.2).

    Data units are counted when a command has succeeded. Commands are counted whenever one has ended
    in the data path. Every status other than success makes an error log entry. A time is added to
    its counter when its condition ends and before the SMART log is read. Counters and entries
    survive a controller reset, and begin anew when the FPGA is configured.

    Parameters
    ----------
    config
        Sizes: ``error_log_entries``.

    Ports
    -----
    io
        I/O commands that have ended, each taken once it has been noted.
    admin
        Admin commands that have ended, each taken once it has been noted.
    misuse
        A pulse: a doorbell was misused, which makes an entry without a command. Pulses that come
        before the entry is written share it.
    recorded
        A pulse: the entry of the misuse is there.
    conditions
        Levels, in the order of `TIMED`: powered (1), an I/O command is inside, warm, hot.
    now
        Time in clock cycles.
    log
        What pages are made of.
    busy
        Something is done without waiting for another block.

    Rate: 11 cycles a command of one block, 13 more for an error. Commands go on being noted while
    a page is made. Back-pressure: ``log.hold``; and, while entries are shown, an error after as
    many others as the page has entries.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "io": In(stream.Signature(note(config))),
                "admin": In(stream.Signature(note(config))),
                "misuse": In(1),
                "recorded": Out(1),
                "conditions": In(len(TIMED)),
                "now": In(TIME_BITS),
                "log": In(LogAccess(config)),
                "busy": Out(1),
            }
        )
        init = log_init(config)
        self._memory = memory.Memory(shape=32, depth=len(init), init=init)
        self._host_read = self._memory.read_port()
        self._read, self._write = self._memory.read_port(), self._memory.write_port()

        # The command, or misuse, that is being noted: fields stay in their stream until taken.
        self._misused = Signal()
        self._of_admin = Signal()
        self._of_misuse = Signal()
        self._ended = Signal(note(config))
        self._status = Signal(STATUS_BITS)
        self._code = self._status[: StatusCode.as_shape().width]
        self._location = Signal(16)

        # What is left to be done for it: data units, commands, media errors, errors, an entry.
        self._units = Signal()
        self._commands = Signal()
        self._media = Signal()
        self._errors = Signal()
        self._record = Signal()

        # What is added to which word of which counter, or subtracted.
        self._counter = Signal(Counter, init=Counter.ERRORS)
        self._part = Signal(2)
        self._amount = Signal(32)
        self._subtract = Signal()
        # The limit that makes one count, if the counter has one; the sum; the sum less the limit.
        self._limit = Signal(32)
        self._limited = Signal()
        self._sum = Signal(32)
        self._total = Signal(32)
        self._less = Signal(33)

        # Times. A condition held when its time was last looked at; a time is to be added.
        self._was = Signal(len(TIMED))
        self._due = Signal(len(TIMED))
        self._moved = (self._due | (self._was ^ self.conditions)).any()
        self._timer = Signal(range(len(TIMED)))  # the one at hand
        self._timing = Signal()  # it is at hand, no command
        self._stamping = Signal()  # it begins: the moment is subtracted
        self._started = Signal()  # of a refresh
        self._age = Signal()
        self._aged = self._age ^ self.now[AGE_BIT]
        self._ticks = self.now[TICK_SHIFT:]
        self._moment = Signal.like(self._ticks)

        # The entry that is written next, and which word of it.
        self._newest = Signal.like(self.log.newest, reset_less=True)
        self._entry = Signal.like(self._newest)
        self._word = Signal(range(USED_WORDS))
        # A word of it on its way to the memory, and whether it is the last one.
        self._enters = Signal()
        self._entry_word = Signal(32)
        self._entry_address = Signal.like(self._write.addr)
        self._ends_entry = Signal()
        # Entries since the newest one that is being shown, the next one included.
        self._younger = Signal.like(self._newest)
        self._blocked = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.words = self._memory
        self._connect_memory(m)
        self._look_at_end(m)
        self._look_at_entries(m)
        self._limit_counter(m)
        self._add_up(m)
        self._write_entry(m)
        chosen = self._watch_conditions(m)
        with m.FSM(name="health") as fsm:
            wants = self._wait(m, chosen)
            self._turn(m)
            self._judge(m)
            self._pick(m)
            self._count(m)
            self._record_entry(m)
            waits = fsm.ongoing("WAIT") & (self.log.hold | ~wants)
        m.d.comb += self.busy.eq(~waits | self.misuse)
        return m

    def _connect_memory(self, m: Module) -> None:
        """The reader's port of the memory."""
        m.d.comb += [
            self._host_read.addr.eq(self.log.read.address),
            self.log.read.data.eq(self._host_read.data),
        ]

    def _look_at_end(self, m: Module) -> None:
        """The command that is noted, its status, and which parameter that blames."""
        admin, io = self.admin.payload, self.io.payload
        misuse = status_field(StatusCode.INVALID_FIELD)
        m.d.comb += [
            self._ended.eq(Mux(self._of_admin, admin.as_value(), io.as_value())),
            self._status.eq(Mux(self._of_misuse, misuse, self._ended.status)),
        ]
        with m.Switch(self._code):
            for place, codes in PARAMETER_LOCATIONS.items():
                with m.Case(*(entry.value for entry in codes)):
                    m.d.comb += self._location.eq(place)
            with m.Default():
                m.d.comb += self._location.eq(UNSPECIFIED_LOCATION)
        with m.If(self.misuse):
            m.d.sync += self._misused.eq(1)

    def _look_at_entries(self, m: Module) -> None:
        """The next entry, and whether it would overwrite one that is shown."""
        too_young = self._younger > self._config.error_log_entries
        m.d.comb += [
            self.log.newest.eq(self._newest),
            self._entry.eq(self._newest + 1),
            self._younger.eq(self._entry - self.log.shown),
            self._blocked.eq(self.log.showing & too_young),
        ]

    def _limit_counter(self, m: Module) -> None:
        """The limit of a counter with a rest: what makes one count. It is known a cycle after the
        counter, in ADD, and used in STORE."""
        config, limit, limited = self._config, self._limit, self._limited
        minute = round(60 * config.clock_hz / (1 << TICK_SHIFT))
        hour = round(3600 * config.clock_hz / (1 << TICK_SHIFT))
        m.d.sync += limited.eq(0)
        with m.Switch(self._counter):
            with m.Case(Counter.UNITS_READ, Counter.UNITS_WRITTEN):
                m.d.sync += [limit.eq(unit(config)), limited.eq(1)]
            with m.Case(Counter.POWER_ON_HOURS):
                m.d.sync += [limit.eq(max(1, hour)), limited.eq(1)]
            with m.Case(Counter.BUSY_MINUTES, Counter.WARM_MINUTES, Counter.HOT_MINUTES):
                m.d.sync += [limit.eq(max(1, minute)), limited.eq(1)]

    def _add_up(self, m: Module) -> None:
        """The word that has been read, and the amount; a cycle later, less the limit."""
        addend = self._amount ^ self._subtract.replicate(32)
        m.d.comb += [
            self._sum.eq(self._read.data + addend + self._subtract),
            self._less.eq(self._total - self._limit),
        ]
        m.d.sync += self._total.eq(self._sum)

    def _write_entry(self, m: Module) -> None:
        """A word of the entry is written in the cycle after it has been looked up. Only STORE
        writes as well, and never in that cycle."""
        ended, of_misuse, of_admin = self._ended, self._of_misuse, self._of_admin
        read, write, word = self._read, self._write, self._word
        layout = error_entry(
            # The memory gives one word after the other.
            count=(read.data, read.data),
            queue=Mux(of_misuse, NO_QUEUE, Mux(of_admin, 0, ended.queue)),
            command=Mux(of_misuse, NO_COMMAND, ended.identifier),
            status=self._status,
            location=self._location,
            block=Mux(of_misuse | of_admin, 0, ended.block),
            nsid=Mux(of_misuse, 0, ended.nsid),
        )
        entry_word = Signal.like(self._entry_word)
        m.d.comb += [
            write.addr.eq(self._entry_address),
            write.data.eq(self._entry_word),
            write.en.eq(self._enters),
        ]
        m.d.sync += [
            self._enters.eq(0),
            self._entry_word.eq(entry_word),
            self._entry_address.eq(Cat(word, self._entry) + SMART_WORDS),
            self._ends_entry.eq(word == USED_WORDS - 1),
        ]
        layout.look_up(m, word, entry_word)
        with m.If(self._enters & self._ends_entry):
            m.d.sync += self._newest.eq(self._entry)

    def _watch_conditions(self, m: Module) -> Value:
        """A condition that has begun or ended, or whose time is to be added: the lowest one."""
        m.d.comb += self.log.fresh.eq(self._started & (self._due == 0))
        with m.If(~self.log.refresh):
            m.d.sync += self._started.eq(0)
        return lowest_bit(m, self._due | (self._was ^ self.conditions), "chosen")

    def _at(self, part: Value) -> Value:
        """The address of a word of the counter."""
        return Cat(part, self._counter)

    def _turn_to(self, m: Module, part: Const) -> None:
        """Goes on with another word of the counter."""
        m.d.sync += self._part.eq(part)
        m.next = "LOAD"

    def _add(self, m: Module, counter, amount, part: Const) -> None:
        """Begins to add to a counter, with word ``part``."""
        m.d.sync += [self._counter.eq(counter), self._amount.eq(amount), self._subtract.eq(0)]
        self._turn_to(m, part)

    # States. Each method has those of one step, and says which they are.

    def _wait(self, m: Module, chosen: Value) -> Value:
        """The state WAIT: takes a time or what has ended, but for a reader that wants no counter to
        change. Returns whether there is any such work."""
        refreshes = self.log.refresh & ~self._started
        comes = self.io.valid | self.admin.valid
        with m.State("WAIT"):
            m.d.sync += [self._timing.eq(0), self._word.eq(0)]
            m.d.comb += self.log.held.eq(self.log.hold)
            with m.If(self.log.hold):
                m.next = "WAIT"
            # A command is noted between two times.
            with m.Elif(self._moved & ~(self._timing & self.io.valid)):
                m.d.sync += [self._timing.eq(1), self._timer.eq(chosen)]
                m.next = "TURN"
            with m.Elif(refreshes | self._aged):
                m.d.sync += [
                    self._started.eq(self.log.refresh),
                    self._due.eq(self._was),
                    self._age.eq(self.now[AGE_BIT]),
                ]
            with m.Elif(comes | self._misused):
                # Commands first: they wait, and a host that misuses doorbells does not.
                m.d.sync += [
                    self._of_misuse.eq(~self.io.valid & ~self.admin.valid),
                    self._of_admin.eq(~self.io.valid),
                ]
                m.next = "JUDGE"
        return self._moved | refreshes | self._aged | self._misused | comes

    def _turn(self, m: Module) -> None:
        """The state TURN. If the condition ends, or goes on, its time up to now is added. If it
        begins, the moment is subtracted."""
        running = self._was.bit_select(self._timer, 1)
        with m.State("TURN"):
            with m.Switch(self._timer):
                for index, timed in enumerate(TIMED):
                    with m.Case(index):
                        m.d.sync += self._counter.eq(timed)
            m.d.sync += [
                self._moment.eq(self._ticks),
                self._amount.eq(self._ticks),
                self._subtract.eq(~running),
                self._stamping.eq(~running),
            ]
            self._turn_to(m, REST)

    def _judge(self, m: Module) -> None:
        """The state JUDGE: what there is to do for a command, or for a misuse."""
        failed = self._status != 0
        moves = self._ended.counts & (self._ended.opcode != HostOpcode.FLUSH)
        with m.State("JUDGE"):
            m.d.sync += [
                self._units.eq(~self._of_misuse & moves & ~failed),
                self._commands.eq(~self._of_misuse & moves),
                self._media.eq(self._code == StatusCode.UNRECOVERED_READ.value),
                self._errors.eq(failed),
                self._record.eq(failed),
            ]
            m.next = "PICK"

    def _pick(self, m: Module) -> None:
        """The state PICK: what is done next. At the end the command is taken."""
        ended = self._ended
        wrote = ended.opcode == HostOpcode.WRITE
        length = ended.blocks + 1
        length = Mux(ended.sectors, length, length << count_shift(self._config))
        with m.State("PICK"):
            with m.If(self._units):
                m.d.sync += self._units.eq(0)
                self._add(m, Mux(wrote, Counter.UNITS_WRITTEN, Counter.UNITS_READ), length, REST)
            with m.Elif(self._commands):
                m.d.sync += self._commands.eq(0)
                self._add(m, Mux(wrote, Counter.WRITES, Counter.READS), 1, LOW)
            with m.Elif(self._media):
                m.d.sync += self._media.eq(0)
                self._add(m, Counter.MEDIA_ERRORS, 1, LOW)
            with m.Elif(self._errors):
                m.d.sync += self._errors.eq(0)
                self._add(m, Counter.ERRORS, 1, LOW)
            with m.Elif(self._record & self._blocked):
                m.next = "PICK"
            with m.Elif(self._record):
                # The counter is still that of the errors.
                m.d.comb += self._read.addr.eq(self._at(LOW))
                m.d.sync += self._record.eq(0)
                m.next = "RECORD"
            with m.Else():
                with m.If(self._of_misuse):
                    m.d.sync += self._misused.eq(self.misuse)
                    m.d.comb += self.recorded.eq(1)
                with m.Else():
                    m.d.comb += [
                        self.admin.ready.eq(self._of_admin),
                        self.io.ready.eq(~self._of_admin),
                    ]
                m.next = "WAIT"

    def _count(self, m: Module) -> None:
        """The states LOAD, ADD and STORE: a word of a counter changes, then perhaps another one."""
        part, total = self._part, self._total
        with m.State("LOAD"):
            m.d.comb += self._read.addr.eq(self._at(part))
            m.next = "ADD"
        with m.State("ADD"):
            m.next = "STORE"
        with m.State("STORE"):
            reached = (part == REST) & ~self._less[32] & ~(self._timing & self._stamping)
            m.d.comb += [
                self._write.addr.eq(self._at(part)),
                self._write.data.eq(Mux(reached, self._less, total)),
                self._write.en.eq(1),
            ]
            m.d.sync += self._amount.eq(1)
            m.next = "PICK"
            with m.If(reached):
                self._turn_to(m, LOW)
            with m.Elif((part == LOW) & (total == 0)):
                self._turn_to(m, HIGH)
            with m.Elif((part != REST) & self._limited):
                # There may be enough for another count.
                m.d.sync += self._amount.eq(0)
                self._turn_to(m, REST)
            with m.Elif(self._timing):
                self._go_on(m)

    def _go_on(self, m: Module) -> None:
        """A time has been added. If its condition goes on, it begins anew: the moment is
        subtracted."""
        timer = self._timer
        goes_on = ~self._stamping & self.conditions.bit_select(timer, 1)
        m.d.sync += [
            self._was.bit_select(timer, 1).eq(self._stamping | goes_on),
            self._due.bit_select(timer, 1).eq(0),
            self._amount.eq(self._moment),
            self._subtract.eq(1),
            self._stamping.eq(1),
        ]
        m.next = "WAIT"
        with m.If(goes_on):
            m.next = "LOAD"

    def _record_entry(self, m: Module) -> None:
        """The state RECORD: the words of the entry, one each cycle."""
        word = self._word
        with m.State("RECORD"):
            m.d.comb += self._read.addr.eq(self._at(HIGH))
            m.d.sync += [self._enters.eq(1), word.eq(word + 1)]
            with m.If(word == USED_WORDS - 1):
                m.next = "PICK"
