"""Counters of the SMART / Health log and the entries of the error log, in one memory."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import SECTOR_BITS, TIME_BITS, Config
from hdl.flow.host_command import HostOpcode
from hdl.kit.pick import lowest_set
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
    LogRead,
    kept_entries,
    log_init,
    unit,
)
from hdl.nvme.records import BLOCK_COUNT_BITS, queue_bits

TICK_SHIFT = 16
"""A tick of the time counters is 2**16 clock cycles."""

AGE_BIT = TIME_BITS - 2
"""When this bit of the time changes, all times are added: long before differences wrap."""

NO_QUEUE = 0xFFFF
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
    ``sectors``: its blocks are 512-byte sectors (not there without `Config.sector_emulation`)."""
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
        | ({"sectors": 1} if config.sector_emulation else {})
    )


class Health(wiring.Component):
    """Keeps what Get Log Page 01h and 02h report (NVMe 1.4 sections 5.14.1.1 and 5.14.1.2).

    Data units are counted when a command has succeeded, commands whenever one has ended in the
    data path, and every status other than success makes an error log entry. A time is added to its
    counter when its condition ends and before the SMART log is read. Counters and entries survive
    a controller reset, and begin anew when the FPGA is configured.

    Parameters
    ----------
    config
        Sizes: ``error_log_entries``.

    Ports
    -----
    io, admin
        Ended commands, each taken once it has been noted.
    misuse, recorded
        A pulse: a doorbell was misused, which makes an entry without a command; one that says that
        the entry is there. Pulses that come before the entry is written share it.
    conditions
        Levels, in the order of `TIMED`: powered (1), an I/O command is inside, warm, hot.
    now
        Time in clock cycles.
    refresh, fresh
        ``refresh`` is held until ``fresh``: times up to now are in their counters.
    hold, held
        While ``hold`` is asserted, from when ``held`` is on, no counter changes: both words of one
        are being read. That takes what is under way, some 24 cycles.
    showing, shown
        A page is being made of entry ``shown`` and those before it: none of them is overwritten.
    read
        The memory: words of the SMART log where that has them (but see `Counter`), then entries of
        `STORED_WORDS`.
    newest
        The entry written last; the one before it has the number below.

    Rate: 11 cycles a command of one block, 13 more for an error. Commands go on being noted while
    a page is made. Back-pressure: ``hold``; and, while entries are shown, an error after as many
    others as the page has entries.
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
                "refresh": In(1),
                "fresh": Out(1),
                "hold": In(1),
                "held": Out(1),
                "showing": In(1),
                "shown": In(range(kept_entries(config))),
                "read": In(LogRead(config)),
                "newest": Out(range(kept_entries(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        init = log_init(config)
        m.submodules.words = words = memory.Memory(shape=32, depth=len(init), init=init)
        host_read, read, write = words.read_port(), words.read_port(), words.write_port()
        m.d.comb += [host_read.addr.eq(self.read.address), self.read.data.eq(host_read.data)]

        # The command, or misuse, that is being noted: fields stay in their stream until taken.
        misused = Signal()
        of_admin = Signal()
        of_misuse = Signal()
        ended = Signal(note(config))
        status = Signal(STATUS_BITS)
        code = status[: StatusCode.as_shape().width]
        location = Signal(16)
        m.d.comb += [
            ended.eq(Mux(of_admin, self.admin.payload.as_value(), self.io.payload.as_value())),
            status.eq(
                Mux(of_misuse, status_field(StatusCode.INVALID_FIELD), ended.status),
            ),
        ]
        with m.Switch(code):
            for place, codes in PARAMETER_LOCATIONS.items():
                with m.Case(*(entry.value for entry in codes)):
                    m.d.comb += location.eq(place)
            with m.Default():
                m.d.comb += location.eq(UNSPECIFIED_LOCATION)

        # What is left to be done for it.
        units = Signal()
        commands = Signal()
        media = Signal()
        errors = Signal()
        record = Signal()
        counter = Signal(Counter, init=Counter.ERRORS)
        amount = Signal(32)
        subtract = Signal()
        part = Signal(2)
        timer = Signal(range(len(TIMED)))
        timing = Signal()
        stamping = Signal()
        was = Signal(len(TIMED))
        due = Signal(len(TIMED))
        started = Signal()
        age = Signal()
        word = Signal(range(USED_WORDS))
        newest = Signal.like(self.newest, reset_less=True)
        entry = Signal.like(newest)
        # Entries since the newest one that is being shown, the next one included.
        younger = Signal.like(newest)
        blocked = Signal()
        m.d.comb += [
            younger.eq(entry - self.shown),
            blocked.eq(self.showing & (younger > config.error_log_entries)),
        ]
        ticks = self.now[TICK_SHIFT:]
        moment = Signal.like(ticks)

        # Counters with a rest: the limit that makes one count.
        minute = round(60 * config.clock_hz / (1 << TICK_SHIFT))
        hour = round(3600 * config.clock_hz / (1 << TICK_SHIFT))
        limit = Signal(32)
        total = Signal(32)
        less = Signal(33)
        limited = Signal()
        with m.Switch(counter):
            with m.Case(Counter.UNITS_READ, Counter.UNITS_WRITTEN):
                m.d.comb += [limit.eq(unit(config)), limited.eq(1)]
            with m.Case(Counter.POWER_ON_HOURS):
                m.d.comb += [limit.eq(max(1, hour)), limited.eq(1)]
            with m.Case(Counter.BUSY_MINUTES, Counter.WARM_MINUTES, Counter.HOT_MINUTES):
                m.d.comb += [limit.eq(max(1, minute)), limited.eq(1)]
        sum_ = Signal(32)
        m.d.comb += [
            sum_.eq(read.data + (amount ^ subtract.replicate(32)) + subtract),
            less.eq(total - limit),
        ]
        m.d.sync += total.eq(sum_)

        def at(which):
            return Cat(which, counter)

        chosen = lowest_set(m, due | (was ^ self.conditions), "chosen")
        moved = (due | (was ^ self.conditions)).any()
        aged = age ^ self.now[AGE_BIT]
        m.d.comb += [
            self.newest.eq(newest),
            entry.eq(newest + 1),
            self.fresh.eq(started & (due == 0)),
        ]
        with m.If(~self.refresh):
            m.d.sync += started.eq(0)
        with m.If(self.misuse):
            m.d.sync += misused.eq(1)

        def turn_to(next_part: Const):
            m.d.sync += part.eq(next_part)
            m.next = "LOAD"

        def add(which, next_amount, first_part: Const):
            m.d.sync += [counter.eq(which), amount.eq(next_amount), subtract.eq(0)]
            turn_to(first_part)

        read_write = ended.opcode != HostOpcode.FLUSH
        length = ended.blocks + 1
        if config.sector_emulation:
            length = Mux(ended.sectors, length, length << SECTOR_BITS)
        with m.FSM(name="health") as fsm:
            with m.State("WAIT"):
                m.d.sync += [timing.eq(0), word.eq(0)]
                m.d.comb += self.held.eq(self.hold)
                with m.If(self.hold):
                    m.next = "WAIT"
                # A command is noted between two times.
                with m.Elif(moved & ~(timing & self.io.valid)):
                    m.d.sync += [timing.eq(1), timer.eq(chosen)]
                    m.next = "TURN"
                with m.Elif((self.refresh & ~started) | aged):
                    m.d.sync += [started.eq(self.refresh), due.eq(was), age.eq(self.now[AGE_BIT])]
                with m.Elif(self.io.valid | self.admin.valid | misused):
                    # Commands first: they wait, and a host that misuses doorbells does not.
                    m.d.sync += [
                        of_misuse.eq(~self.io.valid & ~self.admin.valid),
                        of_admin.eq(~self.io.valid),
                    ]
                    m.next = "JUDGE"

            # A condition ends, or goes on: its time up to now is added. It begins: is subtracted.
            with m.State("TURN"):
                with m.Switch(timer):
                    for index, timed in enumerate(TIMED):
                        with m.Case(index):
                            m.d.sync += counter.eq(timed)
                running = was.bit_select(timer, 1)
                m.d.sync += [
                    moment.eq(ticks),
                    amount.eq(ticks),
                    subtract.eq(~running),
                    stamping.eq(~running),
                ]
                turn_to(REST)

            with m.State("JUDGE"):
                failed = status != 0
                m.d.sync += [
                    units.eq(~of_misuse & ended.counts & read_write & ~failed),
                    commands.eq(~of_misuse & ended.counts & read_write),
                    media.eq(code == StatusCode.UNRECOVERED_READ.value),
                    errors.eq(failed),
                    record.eq(failed),
                ]
                m.next = "PICK"

            with m.State("PICK"):
                wrote = ended.opcode == HostOpcode.WRITE
                with m.If(units):
                    m.d.sync += units.eq(0)
                    units_counter = Mux(wrote, Counter.UNITS_WRITTEN, Counter.UNITS_READ)
                    add(units_counter, length, REST)
                with m.Elif(commands):
                    m.d.sync += commands.eq(0)
                    add(Mux(wrote, Counter.WRITES, Counter.READS), 1, LOW)
                with m.Elif(media):
                    m.d.sync += media.eq(0)
                    add(Counter.MEDIA_ERRORS, 1, LOW)
                with m.Elif(errors):
                    m.d.sync += errors.eq(0)
                    add(Counter.ERRORS, 1, LOW)
                with m.Elif(record & blocked):
                    m.next = "PICK"
                with m.Elif(record):
                    # `counter` is still that of the errors.
                    m.d.comb += read.addr.eq(at(LOW))
                    m.d.sync += record.eq(0)
                    m.next = "RECORD"
                with m.Else():
                    with m.If(of_misuse):
                        m.d.sync += misused.eq(self.misuse)
                        m.d.comb += self.recorded.eq(1)
                    with m.Else():
                        m.d.comb += [
                            self.admin.ready.eq(of_admin),
                            self.io.ready.eq(~of_admin),
                        ]
                    m.next = "WAIT"

            with m.State("LOAD"):
                m.d.comb += read.addr.eq(at(part))
                m.next = "ADD"

            with m.State("ADD"):
                m.next = "STORE"

            with m.State("STORE"):
                reached = (part == REST) & ~less[32] & ~(timing & stamping)
                m.d.comb += [
                    write.addr.eq(at(part)),
                    write.data.eq(Mux(reached, less, total)),
                    write.en.eq(1),
                ]
                m.d.sync += amount.eq(1)
                m.next = "PICK"
                with m.If(reached):
                    turn_to(LOW)
                with m.Elif((part == LOW) & (total == 0)):
                    turn_to(HIGH)
                with m.Elif((part != REST) & limited):
                    # There may be enough for another count.
                    m.d.sync += amount.eq(0)
                    turn_to(REST)
                with m.Elif(timing):
                    # A time that goes on begins anew.
                    goes_on = ~stamping & self.conditions.bit_select(timer, 1)
                    m.d.sync += [
                        was.bit_select(timer, 1).eq(stamping | goes_on),
                        due.bit_select(timer, 1).eq(0),
                        amount.eq(moment),
                        subtract.eq(1),
                        stamping.eq(1),
                    ]
                    m.next = "WAIT"
                    with m.If(goes_on):
                        m.next = "LOAD"

            # Error Information Log Entry (figure 193).
            with m.State("RECORD"):
                block = Mux(of_misuse | of_admin, 0, ended.block)
                queue = Mux(of_admin, Const(0, 16), ended.queue)
                m.d.comb += [
                    read.addr.eq(at(HIGH)),
                    write.addr.eq(Cat(word, entry) + SMART_WORDS),
                    write.en.eq(1),
                ]
                with m.Switch(word):
                    with m.Case(0, 1):
                        m.d.comb += write.data.eq(read.data)
                    with m.Case(2):
                        m.d.comb += write.data.eq(
                            Mux(
                                of_misuse,
                                NO_QUEUE << 16 | NO_QUEUE,
                                Cat(queue | Const(0, 16), ended.identifier),
                            )
                        )
                    with m.Case(3):
                        m.d.comb += write.data.eq(Cat(Const(0, 1), status, location))
                    with m.Case(4):
                        m.d.comb += write.data.eq(block[:32])
                    with m.Case(5):
                        m.d.comb += write.data.eq(block[32:])
                    with m.Case(6):
                        m.d.comb += write.data.eq(Mux(of_misuse, 0, ended.nsid))
                m.d.sync += word.eq(word + 1)
                with m.If(word == USED_WORDS - 1):
                    m.d.sync += newest.eq(entry)
                    m.next = "PICK"

            wants = moved | (self.refresh & ~started) | aged | misused
            waits = fsm.ongoing("WAIT") & (
                self.hold | ~(wants | self.io.valid | self.admin.valid)
            )
        m.d.comb += self.busy.eq(~waits | self.misuse)
        return m
