"""Controller registers, doorbells and the way to the MSI-X table (NVMe 1.4 section 3.1)."""

from math import ceil

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.config.drive_time import row_given_up_ms
from hdl.flow.flush_request import FlushRequest
from hdl.flow.register_bus import RegisterBus
from hdl.nvme.codes import (
    CQ_ENTRY_EXPONENT,
    PAGE_SHIFT,
    SQ_ENTRY_EXPONENT,
    VERSION,
    Region,
    Register,
)
from hdl.nvme.records import ADMIN_INDEX_BITS, PAGE_NUMBER_BITS, doorbell

READY_UNIT_MS = 500
READY_TIMEOUT_BITS = 8
"""CAP.TO."""

REGION_BITS = 12
"""A region of BAR 0 is 4 KiB."""

BYTES = 8
"""Bytes of a register access."""


class ShutdownStatus:
    """CSTS.SHST."""

    NORMAL = 0
    OCCURRING = 1
    COMPLETE = 2


def ready_timeout(config: Config) -> int:
    """CAP.TO (section 3.1.1).

    At a reset, commands that are in the data path end, or their drives are given up. So the host
    waits for that long, or for the longest time that there is. It waits for the longest time if
    drives have no time limit.
    """
    longest = (1 << READY_TIMEOUT_BITS) - 1
    if not config.command_timeout_ms:
        return longest
    return min(ceil(row_given_up_ms(config) / READY_UNIT_MS) + 1, longest)


def capabilities(config: Config) -> int:
    """CAP: contiguous queues only, round robin, doorbell stride 4, NVM command set, 4 KiB pages."""
    contiguous, command_set = 1 << 16, 1 << 37
    return (config.queue_depth - 1) | contiguous | (ready_timeout(config) << 24) | command_set


def configuration() -> data.StructLayout:
    """CC (section 3.1.5)."""
    return data.StructLayout(
        {
            "enable": 1,
            "reserved0": 3,
            "command_set": 3,
            "page_size": 4,
            "arbitration": 3,
            "shutdown": 2,
            "sq_entry": 4,
            "cq_entry": 4,
            "reserved1": 8,
        }
    )


class AdminQueues(wiring.Signature):
    """AQA, ASQ and ACQ as the queue engine needs them.

    Members
    -------
    sq_last
        Entries of the submission queue, minus 1.
    cq_last
        Entries of the completion queue, minus 1.
    sq_page
        Page number of the submission queue in host memory.
    cq_page
        Page number of the completion queue in host memory.
    """

    def __init__(self):
        super().__init__(
            {
                "sq_last": Out(ADMIN_INDEX_BITS),
                "cq_last": Out(ADMIN_INDEX_BITS),
                "sq_page": Out(PAGE_NUMBER_BITS),
                "cq_page": Out(PAGE_NUMBER_BITS),
            }
        )


class VectorAccess(wiring.Signature):
    """Host access to MSI-X structures, seen from the host side.

    Members
    -------
    address
        Of 8 bytes: half of a table entry, or pending bits.
    pending
        Pending bits are read, not the table.
    write_data
        What is written.
    write_enable
        A bit for each byte that is written.
    read_data
        What is at ``address``, one cycle later.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "address": Out(bits_for_count(2 * (config.queue_pairs + 1)) + 1),
                "pending": Out(1),
                "write_data": Out(64),
                "write_enable": Out(BYTES),
                "read_data": In(64),
            }
        )


class Registers(wiring.Component):
    """The register file and the decoder of BAR 0.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    register
        The host's accesses. Writes to read-only and reserved registers are ignored, and reserved
        registers read as 0. INTMS and INTMC are reserved, since interrupts are MSI-X only.
    admin
        The admin queues.
    enable
        Queues are to work: CC.EN is set with a configuration that is supported. After CC.EN has
        been cleared it does not rise before ``running`` has gone low.
    wanted
        The host wants the queues to work, and has not asked for a shutdown.
    unready
        The queues must not begin to work yet. Once they do it may rise.
    running
        The queues work: CSTS.RDY.
    reset
        Function level reset: all registers are as after power-up.
    draining
        The queues must not open (`FunctionReset`).
    forgotten
        CSTS.RDY is 0 (`FunctionReset`).
    drained
        No command is inside.
    settled
        Every write to the host has left.
    shutting
        A shutdown, normal or abrupt, has been asked for, and there has been no reset since. No
        command is wanted any more.
    shutdown_flush
        A shutdown is under way, and every command has ended or been dropped. Once the drives have
        been flushed, CSTS.SHST goes from occurring to complete.
    fatal
        A pulse that sets CSTS.CFS. CC.EN = 0 clears it. CC.EN = 1 with CSS, MPS or AMS other than
        0, or with an admin queue of one entry, sets it too. The controller then stays not ready.
    entry_sizes_good
        CC.IOSQES and CC.IOCQES are those of 64- and 16-byte entries.
    misuse
        A pulse: a doorbell of a queue that the controller does not have was written while the
        queues work.
    doorbell
        Doorbell writes of queues that the controller has.
    vectors
        MSI-X table and pending bits.
    busy
        Something moves without anybody else being waited for.

    Rate: a register write in 1 cycle, a read in 3, a doorbell write as soon as it is taken.
    Back-pressure on ``doorbell`` and ``register.response`` holds ``register.request``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "register": In(RegisterBus()),
                "admin": Out(AdminQueues()),
                "enable": Out(1),
                "wanted": Out(1),
                "unready": In(1),
                "running": In(1),
                "reset": In(1),
                "draining": In(1),
                "forgotten": In(1),
                "drained": In(1),
                "settled": In(1),
                "shutting": Out(1),
                "shutdown_flush": Out(FlushRequest()),
                "fatal": In(1),
                "entry_sizes_good": Out(1),
                "misuse": Out(1),
                "doorbell": Out(stream.Signature(doorbell(config))),
                "vectors": Out(VectorAccess(config)),
                "busy": Out(1),
            }
        )

        # The access at hand. A doorbell pair is one 8-byte word: the tail of the submission queue
        # is low, the head of the completion queue is high.
        self._request = self.register.request.payload
        self._region = Signal(Region)
        self._offset = self._request.address[:REGION_BITS]
        self._word = self._offset[3:]
        self._writes = Signal()  # it writes a controller register
        self._answer = Signal(64)
        self._known_queue = self._word <= config.queue_pairs
        table_words = 2 * (config.queue_pairs + 1)
        self._known_vector = Mux(
            self._region == Region.MSIX_TABLE, self._word < table_words, self._word < 2
        )

        # Registers.
        self._cc = Signal(configuration())
        self._asq = Signal(64)
        self._acq = Signal(64)
        self._aqa = Signal(32)
        self._closing = Signal()  # CC.EN has been cleared, and the queues still work
        self._fatal = Signal()  # CSTS.CFS
        self._shutdown = Signal(2)  # CSTS.SHST

        # A shutdown.
        self._occurring = self._shutdown == ShutdownStatus.OCCURRING
        self._at_rest = self._occurring & self.drained & self.settled  # nothing is under way
        self._wanted = Signal()  # its flush is wanted
        self._stored = Signal()  # its flush is answered
        # Its flush begins.
        request = self.shutdown_flush
        self._begins = self._at_rest & ~self._stored & ~request.flush & ~request.flushed

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += self._region.eq(self._request.address[REGION_BITS:])
        self._tell_queues(m)
        self._write_configuration(m)
        self._write_queues(m)
        with m.If(~self.running):
            m.d.sync += self._closing.eq(0)
        with m.If(self.fatal & ~self._closing):
            m.d.sync += self._fatal.eq(1)
        self._shut_down(m)
        self._reset(m)
        control = self._read_control(m)
        with m.FSM(name="access") as fsm:
            self._take(m)
            self._ring(m)
            self._read(m, control)
            waits = (fsm.ongoing("TAKE") & ~self.register.request.valid) | (
                fsm.ongoing("RESPOND") & ~self.register.response.ready
            )
        settling = (
            (self._closing & ~self.running)
            | self._begins
            | (self.shutdown_flush.flush & self.shutdown_flush.flushed)
            | (self._at_rest & self._stored)
        )
        m.d.comb += self.busy.eq(~waits | settling | self.fatal)
        return m

    def _tell_queues(self, m: Module) -> None:
        """What the queue engine and the MSI-X structures learn of registers and accesses."""
        cc, aqa, word = self._cc, self._aqa, self._word
        enabled = Signal()
        m.d.comb += [
            self.admin.sq_last.eq(aqa[:ADMIN_INDEX_BITS]),
            self.admin.cq_last.eq(aqa[16 : 16 + ADMIN_INDEX_BITS]),
            self.admin.sq_page.eq(self._asq[PAGE_SHIFT:]),
            self.admin.cq_page.eq(self._acq[PAGE_SHIFT:]),
            enabled.eq(cc.enable & ~self._closing & ~self._fatal & ~self.draining),
            self.wanted.eq(enabled & ~self.shutting),
            self.enable.eq(enabled & (~self.unready | self.running)),
            self.entry_sizes_good.eq(
                (cc.sq_entry == SQ_ENTRY_EXPONENT) & (cc.cq_entry == CQ_ENTRY_EXPONENT)
            ),
            self.doorbell.payload.queue.eq(word),
            self.vectors.address.eq(word),
            self.vectors.pending.eq(self._region == Region.MSIX_PENDING),
            self.vectors.write_data.eq(self._request.data),
        ]

    def _at(self, register: Register) -> Value:
        """The access is one of the 8-byte word that ``register`` is in."""
        return self._offset[3:] == register.value >> 3

    def _merged(self, old: Value, *, high: bool = False) -> Value:
        """``old`` with the bytes that the access writes. It is in the upper half of the word if
        ``high``."""
        mask = Cat(enable.replicate(8) for enable in self._request.enable)
        first = 32 if high else 0
        written = slice(first, first + len(old))
        return (old & ~mask[written]) | (self._request.data[written] & mask[written])

    def _write_configuration(self, m: Module) -> None:
        """A write of CC: the controller is enabled, is disabled, or is to shut down."""
        cc = self._cc
        new_cc = Signal(configuration())
        shutdown = self._shutdown
        unsupported = (
            (new_cc.command_set != 0)
            | (new_cc.page_size != 0)
            | (new_cc.arbitration != 0)
            | (self.admin.sq_last == 0)
            | (self.admin.cq_last == 0)
        )
        m.d.comb += new_cc.eq(self._merged(cc.as_value(), high=True))
        with m.If(self._writes & self._at(Register.CC) & self._request.enable[4:].any()):
            m.d.sync += cc.eq(new_cc)
            with m.If(~cc.enable & new_cc.enable):
                m.d.sync += [self._fatal.eq(unsupported), shutdown.eq(ShutdownStatus.NORMAL)]
            with m.If(cc.enable & ~new_cc.enable):
                m.d.sync += [
                    self._closing.eq(self.running),
                    self._fatal.eq(0),
                    shutdown.eq(ShutdownStatus.NORMAL),
                ]
            with m.If((cc.shutdown == 0) & (new_cc.shutdown != 0)):
                m.d.sync += shutdown.eq(ShutdownStatus.OCCURRING)

    def _write_queues(self, m: Module) -> None:
        """A write of an admin queue register."""
        with m.If(self._writes & self._at(Register.AQA)):
            m.d.sync += self._aqa.eq(self._merged(self._aqa, high=True))
        with m.If(self._writes & self._at(Register.ASQ)):
            m.d.sync += self._asq.eq(self._merged(self._asq))
        with m.If(self._writes & self._at(Register.ACQ)):
            m.d.sync += self._acq.eq(self._merged(self._acq))

    def _shut_down(self, m: Module) -> None:
        """A shutdown asks for a flush once nothing is under way, and then is complete.

        A flush whose shutdown has been given up is answered all the same, for none.
        """
        wanted, stored, request = self._wanted, self._stored, self.shutdown_flush
        m.d.comb += [
            self.shutting.eq(self._shutdown != ShutdownStatus.NORMAL),
            request.watches.eq(request.flush),
        ]
        with m.If(self._begins):
            m.d.sync += [request.flush.eq(1), wanted.eq(1)]
        with m.If(request.flush & request.flushed):
            m.d.sync += [request.flush.eq(0), stored.eq(wanted)]
        with m.If(self._at_rest & stored & ~self._writes):
            m.d.sync += self._shutdown.eq(ShutdownStatus.COMPLETE)
        with m.If(~self._occurring):
            m.d.sync += [wanted.eq(0), stored.eq(0)]

    def _reset(self, m: Module) -> None:
        """A function level reset."""
        with m.If(self.reset):
            registers = self._cc, self._aqa, self._asq, self._acq, self._fatal, self._shutdown
            m.d.sync += [register.eq(0) for register in registers]
            m.d.sync += self._closing.eq(self.running)

    def _read_control(self, m: Module) -> Value:
        """What a read of a controller register gets."""
        status = Cat(self.running & ~self.forgotten, self._fatal, self._shutdown)
        control = Signal(64)
        with m.Switch(self._offset[3:]):
            for register, value in (
                (Register.CAP, capabilities(self._config)),
                (Register.VS, VERSION),
                (Register.CC, Cat(Const(0, 32), self._cc.as_value())),
                (Register.CSTS, Cat(Const(0, 32), status)),
                (Register.AQA, Cat(Const(0, 32), self._aqa)),
                (Register.ASQ, self._asq),
                (Register.ACQ, self._acq),
            ):
                with m.Case(register.value >> 3):
                    m.d.comb += control.eq(value)
        return control

    def _take(self, m: Module) -> None:
        """The state TAKE: a write of a register or of the MSI-X table is done at once."""
        bus, region = self.register, self._region
        with m.State("TAKE"):
            with m.If(bus.request.valid):
                with m.If(~self._request.write):
                    m.next = "READ"
                with m.Elif((region == Region.DOORBELLS) & self._known_queue):
                    m.next = "RING_TAIL"
                with m.Else():
                    m.d.comb += [
                        bus.request.ready.eq(1),
                        self.misuse.eq((region == Region.DOORBELLS) & self.running),
                    ]
                    with m.If(region == Region.CONTROL):
                        m.d.comb += self._writes.eq(1)
                    with m.If((region == Region.MSIX_TABLE) & self._known_vector):
                        m.d.comb += self.vectors.write_enable.eq(self._request.enable)

    def _ring(self, m: Module) -> None:
        """The states RING_TAIL and RING_HEAD: an access may write both doorbells of a pair."""
        request, out = self._request, self.doorbell
        with m.State("RING_TAIL"):
            m.d.comb += [
                out.valid.eq(request.enable[:2].all()),
                out.payload.value.eq(request.data[:16]),
            ]
            with m.If(out.ready | ~out.valid):
                m.next = "RING_HEAD"

        with m.State("RING_HEAD"):
            m.d.comb += [
                out.valid.eq(request.enable[4:6].all()),
                out.payload.head.eq(1),
                out.payload.value.eq(request.data[32:48]),
            ]
            with m.If(out.ready | ~out.valid):
                m.d.comb += self.register.request.ready.eq(1)
                m.next = "TAKE"

    def _read(self, m: Module, control: Value) -> None:
        """The states READ and RESPOND. What is not there reads as 0."""
        bus, region, answer = self.register, self._region, self._answer
        with m.State("READ"):
            m.d.comb += bus.request.ready.eq(1)
            m.d.sync += answer.eq(0)
            with m.If(region == Region.CONTROL):
                m.d.sync += answer.eq(control)
            with m.If((region == Region.MSIX_TABLE) | (region == Region.MSIX_PENDING)):
                with m.If(self._known_vector):
                    m.d.sync += answer.eq(self.vectors.read_data)
            m.next = "RESPOND"

        with m.State("RESPOND"):
            m.d.comb += [bus.response.valid.eq(1), bus.response.payload.eq(answer)]
            with m.If(bus.response.ready):
                m.next = "TAKE"
