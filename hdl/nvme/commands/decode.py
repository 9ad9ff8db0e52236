"""Decode of submission queue entries (NVMe 1.4 sections 4.2, 6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode
from hdl.flow.host_memory import sqe_slots
from hdl.kit.disjoint import DISJOINT
from hdl.kit.pulse import Pulse
from hdl.nvme.codes import (
    SQE_BITS,
    SQE_DWORDS,
    STATUS_BITS,
    IoOpcode,
    StatusCode,
    status_field,
)
from hdl.nvme.commands.lifetimes import LifetimeRead
from hdl.nvme.records import (
    BLOCK_COUNT_BITS,
    RANGE_COUNT_BITS,
    InboxWrite,
    admit,
    assign,
    entry,
    finish,
    part_bits,
    queue_bits,
    ranges,
    rejected,
    sqe,
    stored,
)

NSID_BIT = 32
"""Where in an entry NSID begins: in the first beat, at any width."""

FUA_BIT = 30
"""FUA in CDW12 of Read and Write."""


class Decode(wiring.Component):
    """Reads entries of I/O queues out of the inbox, checks the commands and gives each a slot.

    A command in sectors becomes one of the blocks that these lie in, in the entry itself. Of a
    command that is longer than a transfer, as Write Zeroes and Verify may be, the last part is
    admitted. So what is out of range is known before anything is written.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    entry
        Entries that have arrived. Each is taken once it is copied.
    beat
        Which beat of the inbox's entries is read: place, then beat of the entry.
    beat_data
        The beat, one cycle later.
    allocate
        Free slots.
    store
        A command gets a slot (`SlotTable`).
    admit
        I/O commands whose fields are good. PRPs are not looked at yet.
    rejected
        I/O commands whose fields are not: unknown opcode, fused, SGL, namespace, length, LBA.
    ranges
        Dataset Management commands. No other command passes `Decode` this way.
    dropped
        Entries that could not be read, and while ``stop`` all entries. They end without a
        completion queue entry.
    stop
        The controller is being disabled. No command begins, as it might wait for a drive.
    detached
        Bit a volume: it is not attached, and so inactive.
    sectors
        Bit a volume: its logical blocks are 512-byte sectors. 0 without `Config.sector_emulation`.
    write_through
        The volatile write cache is off. Every write has FUA.
    lifetime
        Whether the volume ``belongs``. In the cycle in which a command gets its slot this must be
        so. Else the command ends with Invalid Field, as of an inactive namespace, or with Namespace
        Not Ready if its age is not known.
    busy
        Something moves without anybody else being waited for.

    Latency: 4 cycles and one for each beat of an entry (64 bytes).
    Rate: 7 cycles a command at 256 bits, 9 in sectors.
    Back-pressure on any output holds the rest.
    """

    def __init__(self, *, config: Config):
        self._config = config
        self._beats = -(-SQE_BITS // config.data_width)
        self._beat_bits = bits_for_count(self._beats) if self._beats > 1 else 0
        super().__init__(
            {
                "entry": In(stream.Signature(entry(config))),
                "beat": Out(bits_for_count(sqe_slots(config)) + self._beat_bits),
                "beat_data": In(config.data_width),
                "allocate": In(stream.Signature(config.slot_bits)),
                "store": Out(Pulse(stored(config))),
                "admit": Out(stream.Signature(admit(config))),
                "rejected": Out(stream.Signature(rejected(config))),
                "ranges": Out(stream.Signature(ranges(config))),
                "dropped": Out(stream.Signature(finish(config))),
                "stop": In(1),
                "detached": In(config.volumes),
                "sectors": In(config.volumes),
                "write_through": In(1),
                "lifetime": Out(LifetimeRead(config)),
                "busy": Out(1),
            }
        )

        # The entry, as far as it has been copied, and what came with it.
        self._fields = fields = Signal(sqe())
        self._queue = Signal(queue_bits(config))
        self._error = Signal()
        self._mixed = Signal()
        self._step = Signal(range(self._beats + 1))
        self._first_block = Cat(fields.cdw10, fields.cdw11)
        self._length = fields.cdw12[:BLOCK_COUNT_BITS]  # minus 1
        self._volume = Signal(config.volume_bits)
        # Known as the first beat comes, so that the answer is there with the last one.
        self._looked_up = Signal(config.volume_bits)

        # What the opcode says.
        self._opcode = Signal(HostOpcode)
        self._known = Signal()  # it is one that there is
        self._compares = Signal()  # it is a Compare
        self._ranged = Signal()  # it is a Dataset Management
        self._hostless = Signal()  # no host memory is moved
        self._moves_data = self._opcode != HostOpcode.FLUSH

        # Its parts, and the first block of the last one.
        self._parts = Signal(part_bits(config))
        self._last_part = Signal(BLOCK_NUMBER_BITS + 1)

        # A command in sectors. Of what the entry said before it was turned into blocks, the rest of
        # the first sector's number and the count are kept.
        self._scaled = Signal()  # it has been turned into blocks
        self._head = Signal(SECTOR_BITS)  # sectors of the first block before it
        self._count = Signal(BLOCK_COUNT_BITS)  # sectors, minus 1
        # From the first block's begin to its last sector.
        self._touched = Signal(BLOCK_COUNT_BITS + 1)
        self._in_sectors = (
            self._moves_data & ~self._scaled & self.sectors.bit_select(self._volume, 1)
        )

        # How it begins. Whether the cache is off is as it was when the slot was stored: whoever
        # switches it off waits for those before (`SlotTable`).
        self._slot = Signal(config.slot_bits)
        self._status = Signal(STATUS_BITS)
        self._through = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._read_opcode(m)
        self._measure(m)
        self._describe_command(m)
        self._describe_stored(m)
        self._describe_others(m)
        with m.FSM(name="decode") as fsm:
            self._take(m)
            self._check(m)
            if self._config.sector_emulation:
                self._scale(m)
            self._decide(m)
            self._drop(m)
            waits = (
                (fsm.ongoing("TAKE") & ~self.entry.valid)
                | (fsm.ongoing("CHECK") & ~self.stop & ~self._in_sectors & ~self.allocate.valid)
                | (self.admit.valid & ~self.admit.ready)
                | (self.ranges.valid & ~self.ranges.ready)
                | (self.rejected.valid & ~self.rejected.ready)
                | (self.dropped.valid & ~self.dropped.ready)
            )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _read_opcode(self, m: Module) -> None:
        """What the data path is to do, and which data the host moves."""
        known, opcode = self._known, self._opcode
        with m.Switch(self._fields.opcode):
            for wire, inner, moves_nothing in (
                (IoOpcode.READ, HostOpcode.READ, 0),
                (IoOpcode.WRITE, HostOpcode.WRITE, 0),
                (IoOpcode.FLUSH, HostOpcode.FLUSH, 0),
                (IoOpcode.WRITE_ZEROES, HostOpcode.WRITE, 1),
                (IoOpcode.VERIFY, HostOpcode.READ, 1),
            ):
                with m.Case(wire.value):
                    m.d.comb += [known.eq(1), opcode.eq(inner), self._hostless.eq(moves_nothing)]
            if self._config.compare_and_deallocate:
                with m.Case(IoOpcode.COMPARE.value):
                    m.d.comb += [known.eq(1), opcode.eq(HostOpcode.READ), self._compares.eq(1)]
                # It moves nothing, so that nothing of it is looked at before it gets to `ranges`.
                with m.Case(IoOpcode.DATASET_MANAGEMENT.value):
                    m.d.comb += [known.eq(1), opcode.eq(HostOpcode.FLUSH), self._ranged.eq(1)]

    def _measure(self, m: Module) -> None:
        """Volume, parts and sectors of the command."""
        transfer_bits = self._config.transfer_bits
        with m.If(self._hostless):
            m.d.comb += self._parts.eq(self._length >> transfer_bits)
        m.d.sync += self._last_part.eq(
            self._first_block[:BLOCK_NUMBER_BITS] + Cat(Const(0, transfer_bits), self._parts)
        )
        m.d.comb += [
            self._volume.eq(self._fields.nsid - 1),
            self.lifetime.volume.eq(self._looked_up),
            self._touched.eq(self._head + self._count),
            self.beat.eq(Cat(self._step[: self._beat_bits], self.entry.payload.place)),
        ]

    def _describe_command(self, m: Module) -> None:
        """The command for the data path, its last part."""
        fields, command, opcode = self._fields, self.admit.payload.command, self._opcode
        m.d.comb += [
            *assign(
                command,
                slot=self._slot,
                opcode=opcode,
                fua=fields.cdw12[FUA_BIT] | (self._through & (opcode == HostOpcode.WRITE)),
                recover=0,
                volume=self._volume,
                block=self._last_part,
                blocks=self._length,
                offset=0,
                head=Mux(self._parts == 0, self._head, 0),
                tail=Mux(self._scaled, ~self._touched[:SECTOR_BITS], 0),
            ),
            *assign(
                self.admit.payload,
                hostless=self._hostless,
                compares=self._compares,
                head=self._head,
                prp1=fields.prp1,
                prp2=fields.prp2,
            ),
        ]
        with m.If(self._hostless):
            m.d.comb += command.blocks.eq(self._length[: self._config.transfer_bits])
        with m.If(~self._moves_data):
            m.d.comb += [command.fua.eq(0), command.block.eq(0), command.blocks.eq(0)]

    def _describe_stored(self, m: Module) -> None:
        """What the slot carries. Of a command in sectors it is what the entry said."""
        fields, opcode, store_command = self._fields, self._opcode, self.store.payload.command
        m.d.comb += [
            self.store.payload.slot.eq(self.allocate.payload),
            *assign(
                store_command,
                queue=self._queue,
                identifier=fields.identifier,
                nsid=fields.nsid,
                block=Mux(self._moves_data, self._first_block, 0),
                opcode=opcode,
                blocks=self._length,
                hostless=self._hostless,
                cached=(opcode == HostOpcode.WRITE) & ~(self.write_through | fields.cdw12[FUA_BIT]),
                sectors=self._scaled,
            ),
            self.store.payload.parts.eq(self._parts),
        ]
        with m.If(self._scaled & self._moves_data):
            m.d.comb += [
                store_command.block.eq(Cat(self._head, self._first_block)),
                store_command.blocks.eq(self._count),
            ]

    def _describe_others(self, m: Module) -> None:
        """Dataset Management, and commands that are rejected or dropped."""
        fields = self._fields
        m.d.comb += [
            *assign(
                self.ranges.payload,
                slot=self._slot,
                volume=self._volume,
                count=fields.cdw10[:RANGE_COUNT_BITS],
                prp1=fields.prp1,
                prp2=fields.prp2,
                sectors=self.sectors.bit_select(self._volume, 1),
            ),
            *assign(self.rejected.payload, slot=self._slot, status=self._status),
            *assign(
                self.dropped.payload,
                queue=self._queue,
                identifier=fields.identifier,
                status=status_field(StatusCode.DATA_TRANSFER_ERROR),
                post=0,
            ),
        ]

    def _checks(self) -> tuple:
        """What can be wrong with a command, in the order of its importance."""
        config, fields, moves_data = self._config, self._fields, self._moves_data
        lifetime = self.lifetime
        too_long = Mux(
            self._scaled,
            self._count >= config.transfer_blocks << SECTOR_BITS,
            self._length >= config.transfer_blocks,
        )
        return (
            (~self._known, StatusCode.INVALID_OPCODE),
            ((fields.fuse != 0) | (fields.psdt != 0), StatusCode.INVALID_FIELD),
            ((fields.nsid == 0) | (fields.nsid > config.volumes), StatusCode.INVALID_NAMESPACE),
            (self.detached.bit_select(self._volume, 1), StatusCode.INVALID_FIELD),
            (lifetime.there & ~lifetime.belongs & self._mixed, StatusCode.NAMESPACE_NOT_READY),
            (~lifetime.belongs, StatusCode.INVALID_FIELD),
            (moves_data & ~self._hostless & too_long, StatusCode.INVALID_FIELD),
            (
                moves_data & self._first_block[BLOCK_NUMBER_BITS:].any(),
                StatusCode.LBA_OUT_OF_RANGE,
            ),
        )

    def _take(self, m: Module) -> None:
        """The states TAKE, which waits for an entry, and COPY, which reads it beat by beat."""
        fields, step = self._fields, self._step
        with m.State("TAKE"):
            m.d.sync += [
                self._queue.eq(self.entry.payload.queue),
                self._error.eq(self.entry.payload.error),
                self.lifetime.submitted.eq(self.entry.payload.age),
                self._mixed.eq(self.entry.payload.mixed),
            ]
            with m.If(self.entry.valid):
                m.d.sync += step.eq(1)
                m.next = "COPY"

        with m.State("COPY"):
            with m.If(step == 1):
                nsid = self.beat_data[NSID_BIT : NSID_BIT + self._config.volume_bits]
                m.d.comb += self.lifetime.volume.eq(nsid - 1)
                m.d.sync += self._looked_up.eq(self.lifetime.volume)
            m.d.sync += [
                fields.eq(Cat(fields.as_value(), self.beat_data)[-SQE_BITS:]),
                step.eq(step + 1),
            ]
            with m.If(step == self._beats):
                m.d.comb += self.entry.ready.eq(1)
                m.d.sync += [step.eq(0), self._scaled.eq(0), self._head.eq(0)]
                m.next = "CHECK"
                with m.If(self._error):
                    m.next = "DROP"

    def _check(self, m: Module) -> None:
        """The state CHECK: the command gets a slot and a status."""
        with m.State("CHECK"):
            m.d.sync += [
                self._slot.eq(self.allocate.payload),
                self._through.eq(self.write_through),
                self._status.eq(0),
            ]
            for condition, code in reversed(self._checks()):
                with m.If(condition):
                    m.d.sync += self._status.eq(status_field(code))
            with m.If(self.stop):
                m.next = "DROP"
            if self._config.sector_emulation:
                with m.Elif(self._in_sectors):
                    m.next = "SCALE"
            with m.Elif(self.allocate.valid):
                m.d.comb += [self.allocate.ready.eq(1), self.store.valid.eq(1)]
                m.next = "DECIDE"

    def _scale(self, m: Module) -> None:
        """The state SCALE: a command in sectors becomes one in blocks."""
        first, length = self._first_block, self._length
        with m.State("SCALE"):
            m.d.sync += [
                self._scaled.eq(1),
                self._head.eq(first),
                self._count.eq(length),
                first.eq(first >> SECTOR_BITS),
                length.eq((first[:SECTOR_BITS] + length) >> SECTOR_BITS),
            ]
            m.next = "CHECK"

    def _decide(self, m: Module) -> None:
        """The state DECIDE: the command is passed on, or rejected."""
        status, ranged = self._status, self._ranged
        with m.State("DECIDE"):
            with m.If(self._last_part[BLOCK_NUMBER_BITS] & (status == 0)):
                m.d.sync += status.eq(status_field(StatusCode.LBA_OUT_OF_RANGE))
            with m.Elif(status == 0):
                m.d.comb += [self.admit.valid.eq(~ranged), self.ranges.valid.eq(ranged)]
            with m.Else():
                m.d.comb += self.rejected.valid.eq(1)
            with m.If(
                (self.admit.valid & self.admit.ready)
                | (self.ranges.valid & self.ranges.ready)
                | (self.rejected.valid & self.rejected.ready)
            ):
                m.next = "TAKE"

    def _drop(self, m: Module) -> None:
        """The state DROP: the command ends, and nobody is told."""
        with m.State("DROP"):
            m.d.comb += self.dropped.valid.eq(1)
            with m.If(self.dropped.ready):
                m.next = "TAKE"


class EntryMemory(wiring.Component):
    """The part of the inbox that holds entries of I/O queues.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inbox
        Beats to write.
    read_beat
        Which beat is read.
    read_data
        The beat, one cycle later.
    busy
        Never: nothing moves by itself.
    """

    def __init__(self, *, config: Config):
        self._config = config
        beats = sqe_slots(config) * SQE_BITS // config.data_width
        self._beats = beats
        super().__init__(
            {
                "inbox": In(InboxWrite(config, beats)),
                "read_beat": In(bits_for_count(beats)),
                "read_data": Out(config.data_width),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.beats = beats = memory.Memory(
            shape=self._config.data_width, depth=self._beats, init=[], attrs=DISJOINT
        )
        write, read = beats.write_port(granularity=32), beats.read_port()
        m.d.comb += [
            write.addr.eq(self.inbox.beat),
            write.data.eq(self.inbox.data),
            write.en.eq(self.inbox.mask),
            read.addr.eq(self.read_beat),
            self.read_data.eq(read.data),
        ]
        return m


class AdminEntry(wiring.Component):
    """The part of the inbox that holds the one entry of the admin queue.

    It has a place and a way of its own. Entries of I/O queues may wait for a slot until a drive has
    ended a command. They do not hold the admin entry up.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inbox
        Beats of the entry.
    done
        All of the entry is there, or never will be if this is 1. Only while nothing is offered.
    entry
        The entry. It is stable until taken.
    dropped
        An entry that could not be read. It ends without a completion queue entry.
    taken
        A pulse: neither is offered any more.
    busy
        An entry comes or goes.

    Latency: one cycle from ``done``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        self._beats = -(-SQE_BITS // config.data_width)
        super().__init__(
            {
                "inbox": In(InboxWrite(config, self._beats)),
                "done": In(Pulse(1)),
                "entry": Out(stream.Signature(sqe())),
                "dropped": Out(stream.Signature(finish(config))),
                "taken": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self._config.beat_dwords
        fields = Signal(sqe())
        for word in range(SQE_DWORDS):
            beat, lane = divmod(word, width)
            with m.If(self.inbox.mask[lane] & (self.inbox.beat == beat)):
                m.d.sync += fields.as_value().word_select(word, 32).eq(
                    self.inbox.data.word_select(lane, 32)
                )
        with m.If(self.entry.ready):
            m.d.sync += self.entry.valid.eq(0)
        with m.If(self.dropped.ready):
            m.d.sync += self.dropped.valid.eq(0)
        with m.If(self.done.valid):
            m.d.sync += [
                self.entry.valid.eq(~self.done.payload),
                self.dropped.valid.eq(self.done.payload),
            ]
        m.d.comb += [
            self.entry.payload.eq(fields),
            *assign(
                self.dropped.payload,
                queue=0,
                identifier=fields.identifier,
                status=status_field(StatusCode.DATA_TRANSFER_ERROR),
                post=0,
            ),
            self.taken.eq(
                (self.entry.valid & self.entry.ready) | (self.dropped.valid & self.dropped.ready)
            ),
            self.busy.eq(self.done.valid | self.taken),
        ]
        return m
