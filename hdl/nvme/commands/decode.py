"""Decode of submission queue entries (NVMe 1.4 sections 4.2, 6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode
from hdl.flow.host_memory import sqe_slots
from hdl.kit.disjoint import DISJOINT
from hdl.nvme.codes import (
    SQE_BITS,
    SQE_DWORDS,
    STATUS_BITS,
    IoOpcode,
    StatusCode,
    status_field,
)
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.records import (
    BLOCK_COUNT_BITS,
    RANGE_COUNT_BITS,
    admit,
    assign,
    carried,
    entry,
    finish,
    part_bits,
    queue_bits,
    ranges,
    rejected,
    sqe,
)

NSID_PLACE = 32
"""Where in an entry NSID begins: in the first beat, at any width."""

FUA_BIT = 30
"""FUA in CDW12 of Read and Write."""


class Decode(wiring.Component):
    """Reads entries of I/O queues out of the inbox, checks the commands and gives each a slot.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    entry
        Entries that have arrived; taken once copied.
    beat, beat_data
        Synchronous read of the inbox's entries: place, then beat.
    allocate
        Free slots.
    store, store_slot, store_command, store_parts
        A pulse: what a slot carries (`SlotTable`).
    admit
        I/O commands whose fields are good; PRPs are not looked at yet.
    rejected
        I/O commands that are not: unknown opcode, fused, SGL, namespace, length, LBA.
        Write Zeroes and Verify may be longer than a transfer: their last part is admitted.
    ranges
        Dataset Management commands; no other command passes `Decode` this way.
    dropped
        Entries that could not be read, and while ``stop`` all: they end without a completion queue
        entry.
    stop
        The controller is being disabled: no command begins, as it might wait for a drive.
    detached
        A bit per volume: it is not attached, and so inactive.
    sectors
        A bit per volume: its logical blocks are 512-byte sectors (not there without
        `Config.sector_emulation`).
    write_through
        The volatile write cache is off: every write has FUA.
    volume, submitted, there, belongs
        To and from `hdl.nvme.commands.lifetimes.Lifetimes`. In the cycle in which a command gets
        its slot, its volume must have been there since it was submitted; else it ends with Invalid
        Field, as of an inactive namespace, or with Command Interrupted if its age is not known.

    A command in sectors becomes one of the blocks that these lie in, in the entry itself.

    Latency: 4 cycles and one for each beat of an entry (64 bytes); 7 cycles a command at 256 bits,
    9 in sectors.
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
                "store": Out(1),
                "store_slot": Out(config.slot_bits),
                "store_command": Out(carried(config)),
                "store_parts": Out(part_bits(config)),
                "admit": Out(stream.Signature(admit(config))),
                "rejected": Out(stream.Signature(rejected(config))),
                "ranges": Out(stream.Signature(ranges(config))),
                "dropped": Out(stream.Signature(finish(config))),
                "stop": In(1),
                "detached": In(config.volumes),
                "write_through": In(1),
                "volume": Out(config.volume_bits),
                "submitted": Out(AGE_BITS),
                "there": In(1),
                "belongs": In(1),
                "busy": Out(1),
            }
            | ({"sectors": In(config.volumes)} if config.sector_emulation else {})
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        fields = Signal(sqe())
        queue = Signal(queue_bits(config))
        error = Signal()
        step = Signal(range(self._beats + 1))
        slot = Signal(config.slot_bits)
        status = Signal(STATUS_BITS)
        # As it is stored: whoever switches the cache off waits for those before (`SlotTable`).
        through = Signal()

        block = Cat(fields.cdw10, fields.cdw11)
        length = fields.cdw12[:BLOCK_COUNT_BITS]
        opcode = Signal(HostOpcode)
        known = Signal()
        compares, ranged = Signal(), Signal()
        hostless = Signal()
        with m.Switch(fields.opcode):
            for wire, inner, moves_nothing in (
                (IoOpcode.READ, HostOpcode.READ, 0),
                (IoOpcode.WRITE, HostOpcode.WRITE, 0),
                (IoOpcode.FLUSH, HostOpcode.FLUSH, 0),
                (IoOpcode.WRITE_ZEROES, HostOpcode.WRITE, 1),
                (IoOpcode.VERIFY, HostOpcode.READ, 1),
            ):
                with m.Case(wire.value):
                    m.d.comb += [known.eq(1), opcode.eq(inner), hostless.eq(moves_nothing)]
            if config.compare_and_deallocate:
                with m.Case(IoOpcode.COMPARE.value):
                    m.d.comb += [known.eq(1), opcode.eq(HostOpcode.READ), compares.eq(1)]
                # It moves nothing, so that nothing of it is looked at before it gets to `ranges`.
                with m.Case(IoOpcode.DATASET_MANAGEMENT.value):
                    m.d.comb += [known.eq(1), opcode.eq(HostOpcode.FLUSH), ranged.eq(1)]
        moves_data = opcode != HostOpcode.FLUSH
        # The last part of a command that is longer than a transfer goes first: what is out of
        # range is known before anything is written.
        parts = Signal(part_bits(config))
        last_part = Signal(BLOCK_NUMBER_BITS + 1)
        with m.If(hostless):
            m.d.comb += parts.eq(length >> config.transfer_bits)
        m.d.sync += last_part.eq(
            block[:BLOCK_NUMBER_BITS] + Cat(Const(0, config.transfer_bits), parts)
        )

        volume = Signal(config.volume_bits)
        m.d.comb += volume.eq(fields.nsid - 1)
        # Known as the first beat comes, so that what is asked of it is there with the last one.
        mixed = Signal()
        looked_up = Signal(config.volume_bits)
        m.d.comb += self.volume.eq(looked_up)

        # In sectors: what the entry said before it was turned into blocks.
        scaled = Signal()
        head, count = Signal(SECTOR_BITS), Signal(BLOCK_COUNT_BITS)
        touched = Signal(BLOCK_COUNT_BITS + 1)
        too_long = length >= config.transfer_blocks
        if config.sector_emulation:
            too_long = Mux(scaled, count >= config.transfer_blocks << SECTOR_BITS, too_long)
            m.d.comb += touched.eq(head + count)
        checks = (
            (~known, StatusCode.INVALID_OPCODE),
            ((fields.fuse != 0) | (fields.psdt != 0), StatusCode.INVALID_FIELD),
            ((fields.nsid == 0) | (fields.nsid > config.volumes), StatusCode.INVALID_NAMESPACE),
            (self.detached.bit_select(volume, 1), StatusCode.INVALID_FIELD),
            (self.there & ~self.belongs & mixed, StatusCode.COMMAND_INTERRUPTED),
            (~self.belongs, StatusCode.INVALID_FIELD),
            (
                moves_data & ~hostless & too_long,
                StatusCode.INVALID_FIELD,
            ),
            (moves_data & block[BLOCK_NUMBER_BITS:].any(), StatusCode.LBA_OUT_OF_RANGE),
        )

        command = self.admit.payload.command
        m.d.comb += [
            *assign(
                command,
                slot=slot,
                opcode=opcode,
                fua=fields.cdw12[FUA_BIT] | (through & (opcode == HostOpcode.WRITE)),
                recover=0,
                volume=volume,
                block=last_part,
                blocks=length,
                offset=0,
            ),
            self.admit.payload.hostless.eq(hostless),
            *assign(
                self.ranges.payload,
                slot=slot,
                volume=volume,
                count=fields.cdw10[:RANGE_COUNT_BITS],
                prp1=fields.prp1,
                prp2=fields.prp2,
            ),
            self.admit.payload.prp1.eq(fields.prp1),
            self.admit.payload.prp2.eq(fields.prp2),
            *assign(self.rejected.payload, slot=slot, status=status),
            *assign(
                self.dropped.payload,
                queue=queue,
                identifier=fields.identifier,
                status=status_field(StatusCode.DATA_TRANSFER_ERROR),
                post=0,
            ),
            self.store_slot.eq(self.allocate.payload),
            *assign(
                self.store_command,
                queue=queue,
                identifier=fields.identifier,
                nsid=fields.nsid,
                block=Mux(moves_data, block, 0),
                opcode=opcode,
                blocks=length,
                hostless=hostless,
                cached=~self.write_through & (opcode == HostOpcode.WRITE),
            ),
            self.store_parts.eq(parts),
            self.beat.eq(Cat(step[: self._beat_bits], self.entry.payload.place)),
        ]
        if config.compare_and_deallocate:
            m.d.comb += self.admit.payload.compares.eq(compares)
        if config.sector_emulation:
            m.d.comb += [
                command.head.eq(Mux(parts == 0, head, 0)),
                command.tail.eq(Mux(scaled, ~touched[:SECTOR_BITS], 0)),
                self.admit.payload.head.eq(head),
                self.ranges.payload.sectors.eq(self.sectors.bit_select(volume, 1)),
                self.store_command.sectors.eq(scaled),
            ]
            with m.If(hostless):
                m.d.comb += command.blocks.eq(length[: config.transfer_bits])
            with m.If(scaled & moves_data):
                m.d.comb += [
                    self.store_command.block.eq(Cat(head, block)),
                    self.store_command.blocks.eq(count),
                ]
        with m.If(~moves_data):
            m.d.comb += [command.fua.eq(0), command.block.eq(0), command.blocks.eq(0)]

        with m.FSM(name="decode") as fsm:
            with m.State("TAKE"):
                m.d.sync += [
                    queue.eq(self.entry.payload.queue),
                    error.eq(self.entry.payload.error),
                    self.submitted.eq(self.entry.payload.age),
                    mixed.eq(self.entry.payload.mixed),
                ]
                with m.If(self.entry.valid):
                    m.d.sync += step.eq(1)
                    m.next = "COPY"

            with m.State("COPY"):
                with m.If(step == 1):
                    nsid = self.beat_data[NSID_PLACE : NSID_PLACE + config.volume_bits]
                    m.d.comb += self.volume.eq(nsid - 1)
                    m.d.sync += looked_up.eq(self.volume)
                m.d.sync += [
                    fields.eq(Cat(fields.as_value(), self.beat_data)[-SQE_BITS:]),
                    step.eq(step + 1),
                ]
                with m.If(step == self._beats):
                    m.d.comb += self.entry.ready.eq(1)
                    m.d.sync += [step.eq(0), scaled.eq(0), head.eq(0)]
                    m.next = "CHECK"
                    with m.If(error):
                        m.next = "DROP"

            with m.State("CHECK"):
                m.d.sync += [
                    slot.eq(self.allocate.payload),
                    through.eq(self.write_through),
                    status.eq(0),
                ]
                for condition, code in reversed(checks):
                    with m.If(condition):
                        m.d.sync += status.eq(status_field(code))
                in_sectors = Const(0, 1)
                if config.sector_emulation:
                    in_sectors = moves_data & ~scaled & self.sectors.bit_select(volume, 1)
                with m.If(self.stop):
                    m.next = "DROP"
                if config.sector_emulation:
                    with m.Elif(in_sectors):
                        m.next = "SCALE"
                with m.Elif(self.allocate.valid):
                    m.d.comb += [self.allocate.ready.eq(1), self.store.eq(1)]
                    m.next = "DECIDE"

            if config.sector_emulation:
                with m.State("SCALE"):
                    m.d.sync += [
                        scaled.eq(1),
                        head.eq(block),
                        count.eq(length),
                        block.eq(block >> SECTOR_BITS),
                        length.eq((block[:SECTOR_BITS] + length) >> SECTOR_BITS),
                    ]
                    m.next = "CHECK"

            with m.State("DECIDE"):
                with m.If(last_part[BLOCK_NUMBER_BITS] & (status == 0)):
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

            with m.State("DROP"):
                m.d.comb += self.dropped.valid.eq(1)
                with m.If(self.dropped.ready):
                    m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.entry.valid)
                | (fsm.ongoing("CHECK") & ~self.stop & ~in_sectors & ~self.allocate.valid)
                | (self.admit.valid & ~self.admit.ready)
                | (self.ranges.valid & ~self.ranges.ready)
                | (self.rejected.valid & ~self.rejected.ready)
                | (self.dropped.valid & ~self.dropped.ready)
            )
            m.d.comb += self.busy.eq(~waits)
        return m


class EntryMemory(wiring.Component):
    """The part of the inbox that holds entries of I/O queues; read latency one cycle."""

    def __init__(self, *, config: Config):
        self._config = config
        beats = sqe_slots(config) * SQE_BITS // config.data_width
        self._beats = beats
        super().__init__(
            {
                "write_beat": In(bits_for_count(beats)),
                "write_data": In(config.data_width),
                "write_mask": In(config.beat_dwords),
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
            write.addr.eq(self.write_beat),
            write.data.eq(self.write_data),
            write.en.eq(self.write_mask),
            read.addr.eq(self.read_beat),
            self.read_data.eq(read.data),
        ]
        return m


class AdminEntry(wiring.Component):
    """The part of the inbox that holds the one entry of the admin queue.

    It has a place and a way of its own: entries of I/O queues, which may wait for a slot until a
    drive has ended a command, do not hold it up.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    write_beat, write_data, write_mask
        Beats of the entry as they arrive.
    done, done_error
        A pulse: all of it is there, or never will be. Only while nothing is offered.
    entry
        The entry; stable until taken.
    dropped
        One that could not be read: it ends without a completion queue entry.
    taken
        A pulse: neither is offered any more.

    Latency one cycle from ``done``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        self._beats = -(-SQE_BITS // config.data_width)
        super().__init__(
            {
                "write_beat": In(range(max(2, self._beats))),
                "write_data": In(config.data_width),
                "write_mask": In(config.beat_dwords),
                "done": In(1),
                "done_error": In(1),
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
            beat, place = divmod(word, width)
            with m.If(self.write_mask[place] & (self.write_beat == beat)):
                m.d.sync += fields.as_value().word_select(word, 32).eq(
                    self.write_data.word_select(place, 32)
                )
        with m.If(self.entry.ready):
            m.d.sync += self.entry.valid.eq(0)
        with m.If(self.dropped.ready):
            m.d.sync += self.dropped.valid.eq(0)
        with m.If(self.done):
            m.d.sync += [
                self.entry.valid.eq(~self.done_error),
                self.dropped.valid.eq(self.done_error),
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
            self.busy.eq(self.done | self.taken),
        ]
        return m
