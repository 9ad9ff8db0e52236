"""Controller registers, doorbells and the way to the MSI-X table (NVMe 1.4 section 3.1)."""

from math import ceil

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.config.drive_time import given_up_ms
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
    """CAP.TO (section 3.1.1): commands that are in the drives at a reset end, or their drive is
    given up. Where drives have no time limit, and where it is longer, the longest there is."""
    longest = (1 << READY_TIMEOUT_BITS) - 1
    if not config.command_timeout_ms:
        return longest
    return min(ceil(given_up_ms(config) / READY_UNIT_MS) + 1, longest)


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
    """AQA, ASQ and ACQ as the queue engine needs them: entries - 1, and page numbers."""

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
    """Host access to MSI-X structures, seen from the host side: 8 bytes at ``address``.

    ``read_data`` follows the address by one cycle. ``pending``: pending bits, not the table.
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
        The host's accesses; writes to read-only and reserved registers are ignored, reserved
        registers read as 0. INTMS and INTMC are reserved, since interrupts are MSI-X only.
    admin, enable
        Admin queues and whether queues are to work: CC.EN with a configuration that is supported,
        and not again before ``running`` has gone low.
    running
        The queues work: CSTS.RDY.
    reset, draining, forgotten
        Function level reset: all registers as after power-up; then the queues must not open, and
        CSTS.RDY is 0 (`FunctionReset`).
    drained, settled
        No command is inside; every write to the host has left.
    shutting
        A shutdown, normal or abrupt, has been asked for, and there has been no reset since: no
        command is wanted any more.
    flush, flushed
        A level: a shutdown is under way and every command has ended; 1 until answered. Since then
        every drive has been flushed, or has failed to be, so CSTS.SHST goes from occurring to
        complete.
    fatal
        A pulse that sets CSTS.CFS; CC.EN = 0 clears it. So does CC.EN = 1 with CSS, MPS or AMS
        other than 0, or an admin queue of one entry; the controller then stays not ready.
    entry_sizes_good
        CC.IOSQES and CC.IOCQES are those of 64- and 16-byte entries.
    doorbell
        Doorbell writes of queues that the controller has.
    misuse
        A pulse: a doorbell of another queue was written while the queues work.
    vectors
        MSI-X table and pending bits.

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
                "running": In(1),
                "reset": In(1),
                "draining": In(1),
                "forgotten": In(1),
                "drained": In(1),
                "settled": In(1),
                "shutting": Out(1),
                "flush": Out(1),
                "flushed": In(1),
                "fatal": In(1),
                "entry_sizes_good": Out(1),
                "misuse": Out(1),
                "doorbell": Out(stream.Signature(doorbell(config))),
                "vectors": Out(VectorAccess(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        bus = self.register
        request = bus.request.payload
        region = Signal(Region)
        offset = request.address[:REGION_BITS]
        m.d.comb += region.eq(request.address[REGION_BITS:])

        cc = Signal(configuration())
        asq, acq, aqa = Signal(64), Signal(64), Signal(32)
        closing = Signal()
        fatal = Signal()
        shutdown = Signal(2)
        m.d.comb += [
            self.admin.sq_last.eq(aqa[:ADMIN_INDEX_BITS]),
            self.admin.cq_last.eq(aqa[16 : 16 + ADMIN_INDEX_BITS]),
            self.admin.sq_page.eq(asq[PAGE_SHIFT:]),
            self.admin.cq_page.eq(acq[PAGE_SHIFT:]),
            self.enable.eq(cc.enable & ~closing & ~fatal & ~self.draining),
            self.entry_sizes_good.eq(
                (cc.sq_entry == SQ_ENTRY_EXPONENT) & (cc.cq_entry == CQ_ENTRY_EXPONENT)
            ),
        ]

        # A write, merged with what is there byte by byte.
        write_control = Signal()
        mask = Cat(enable.replicate(8) for enable in request.enable)
        new_cc = Signal(configuration())
        unsupported = Signal()

        def merged(old):
            return (old & ~mask[: len(old)]) | (request.data[: len(old)] & mask[: len(old)])

        def merged_high(old):
            return (old & ~mask[32:]) | (request.data[32:] & mask[32:])

        m.d.comb += [
            new_cc.eq(merged_high(cc.as_value())),
            unsupported.eq(
                (new_cc.command_set != 0)
                | (new_cc.page_size != 0)
                | (new_cc.arbitration != 0)
                | (self.admin.sq_last == 0)
                | (self.admin.cq_last == 0)
            ),
        ]

        def at(register: Register):
            return offset[3:] == register.value >> 3

        with m.If(write_control):
            with m.If(at(Register.CC) & request.enable[4:].any()):
                m.d.sync += cc.eq(new_cc)
                with m.If(~cc.enable & new_cc.enable):
                    m.d.sync += [fatal.eq(unsupported), shutdown.eq(ShutdownStatus.NORMAL)]
                with m.If(cc.enable & ~new_cc.enable):
                    m.d.sync += [
                        closing.eq(self.running),
                        fatal.eq(0),
                        shutdown.eq(ShutdownStatus.NORMAL),
                    ]
                with m.If((cc.shutdown == 0) & (new_cc.shutdown != 0)):
                    m.d.sync += shutdown.eq(ShutdownStatus.OCCURRING)
            with m.If(at(Register.AQA)):
                m.d.sync += aqa.eq(merged_high(aqa))
            with m.If(at(Register.ASQ)):
                m.d.sync += asq.eq(merged(asq))
            with m.If(at(Register.ACQ)):
                m.d.sync += acq.eq(merged(acq))
        with m.If(~self.running):
            m.d.sync += closing.eq(0)
        with m.If(self.fatal & ~closing):
            m.d.sync += fatal.eq(1)
        # A flush whose shutdown has been given up is answered all the same, for none.
        occurring = shutdown == ShutdownStatus.OCCURRING
        at_rest = occurring & self.drained & self.settled
        wanted, stored = Signal(), Signal()
        begins = at_rest & ~stored & ~self.flush & ~self.flushed
        m.d.comb += self.shutting.eq(shutdown != ShutdownStatus.NORMAL)
        with m.If(begins):
            m.d.sync += [self.flush.eq(1), wanted.eq(1)]
        with m.If(self.flush & self.flushed):
            m.d.sync += [self.flush.eq(0), stored.eq(wanted)]
        with m.If(at_rest & stored & ~write_control):
            m.d.sync += shutdown.eq(ShutdownStatus.COMPLETE)
        with m.If(~occurring):
            m.d.sync += [wanted.eq(0), stored.eq(0)]
        with m.If(self.reset):
            m.d.sync += [register.eq(0) for register in (cc, aqa, asq, acq, fatal, shutdown)]
            m.d.sync += closing.eq(self.running)

        status = Cat(self.running & ~self.forgotten, fatal, shutdown)
        control = Signal(64)
        with m.Switch(offset[3:]):
            with m.Case(Register.CAP.value >> 3):
                m.d.comb += control.eq(capabilities(config))
            with m.Case(Register.VS.value >> 3):
                m.d.comb += control.eq(VERSION)
            with m.Case(Register.CC.value >> 3):
                m.d.comb += control.eq(Cat(Const(0, 32), cc.as_value()))
            with m.Case(Register.CSTS.value >> 3):
                m.d.comb += control.eq(Cat(Const(0, 32), status))
            with m.Case(Register.AQA.value >> 3):
                m.d.comb += control.eq(Cat(Const(0, 32), aqa))
            with m.Case(Register.ASQ.value >> 3):
                m.d.comb += control.eq(asq)
            with m.Case(Register.ACQ.value >> 3):
                m.d.comb += control.eq(acq)

        # A doorbell pair is one 8-byte word: SQ tail low, CQ head high.
        word = offset[3:]
        known_queue = word <= config.queue_pairs
        table_words = 2 * (config.queue_pairs + 1)
        known_vector = Mux(region == Region.MSIX_TABLE, word < table_words, word < 2)
        m.d.comb += [
            self.doorbell.payload.queue.eq(word),
            self.vectors.address.eq(word),
            self.vectors.pending.eq(region == Region.MSIX_PENDING),
            self.vectors.write_data.eq(request.data),
        ]

        answer = Signal(64)
        with m.FSM(name="access") as fsm:
            with m.State("TAKE"):
                with m.If(bus.request.valid):
                    with m.If(~request.write):
                        m.next = "READ"
                    with m.Elif((region == Region.DOORBELLS) & known_queue):
                        m.next = "RING_TAIL"
                    with m.Else():
                        m.d.comb += [
                            bus.request.ready.eq(1),
                            self.misuse.eq((region == Region.DOORBELLS) & self.running),
                        ]
                        with m.If(region == Region.CONTROL):
                            m.d.comb += write_control.eq(1)
                        with m.If((region == Region.MSIX_TABLE) & known_vector):
                            m.d.comb += self.vectors.write_enable.eq(request.enable)

            with m.State("RING_TAIL"):
                m.d.comb += [
                    self.doorbell.valid.eq(request.enable[:2].all()),
                    self.doorbell.payload.value.eq(request.data[:16]),
                ]
                with m.If(self.doorbell.ready | ~self.doorbell.valid):
                    m.next = "RING_HEAD"

            with m.State("RING_HEAD"):
                m.d.comb += [
                    self.doorbell.valid.eq(request.enable[4:6].all()),
                    self.doorbell.payload.head.eq(1),
                    self.doorbell.payload.value.eq(request.data[32:48]),
                ]
                with m.If(self.doorbell.ready | ~self.doorbell.valid):
                    m.d.comb += bus.request.ready.eq(1)
                    m.next = "TAKE"

            with m.State("READ"):
                m.d.comb += bus.request.ready.eq(1)
                m.d.sync += answer.eq(0)
                with m.If(region == Region.CONTROL):
                    m.d.sync += answer.eq(control)
                with m.If((region == Region.MSIX_TABLE) | (region == Region.MSIX_PENDING)):
                    with m.If(known_vector):
                        m.d.sync += answer.eq(self.vectors.read_data)
                m.next = "RESPOND"

            with m.State("RESPOND"):
                m.d.comb += [bus.response.valid.eq(1), bus.response.payload.eq(answer)]
                with m.If(bus.response.ready):
                    m.next = "TAKE"

            waits = (fsm.ongoing("TAKE") & ~bus.request.valid) | (
                fsm.ongoing("RESPOND") & ~bus.response.ready
            )
            settling = (
                (closing & ~self.running)
                | begins
                | (self.flush & self.flushed)
                | (at_rest & stored)
            )
            m.d.comb += self.busy.eq(~waits | settling | self.fatal)
        return m
