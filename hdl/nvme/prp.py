"""PRP entries: lists are fetched before a command is passed on, then blocks find their pages."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.nvme.codes import PAGE_SHIFT, StatusCode, status_field
from hdl.nvme.interface import HostOpcode, Status, command, transfer
from hdl.nvme.prp_lists import ENTRY_BITS, ListFates, ListMemory, Measure, list_beats
from hdl.nvme.records import admit, again, assign, comparison, rejected, unsent, zeros
from hdl.nvme.requests import RequestQueues, moves
from hdl.nvme.sector_span import SectorSpan
from hdl.pcie.interface import Kind, read_request, write_request

ENTRY_DWORDS = ENTRY_BITS // 32
PART_STEP = 1
"""Transfers between a part of a long command and the next one below."""


class Prp(wiring.Component):
    """Passes commands on once their PRPs are known good, and turns blocks into host requests.

    Entry 0 of a command is PRP1 and may begin inside its page; then every block spans the end of
    one page and the beginning of the next. Entry 1 is PRP2 when the command spans two pages; when
    it spans more, PRP2 points to the list of all entries from 1 on (NVMe 1.4 section 4.3). A list
    that reaches the end of a page goes on where that page's last entry points. Of a command whose
    first and last blocks are not meant as a whole, `SectorSpan` says where each block lies.

    Parameters
    ----------
    config
        Sizes. A command spans at most ``transfer_blocks`` + 1 pages, so that its list has at most
        ``transfer_blocks`` entries and crosses at most one page end.

    Ports
    -----
    admit
        Decoded commands.
    again
        Slots whose command (a hostless one) goes on with the ``transfer_blocks`` blocks below.
    command
        Commands whose PRPs are at hand. Those without a list pass those that wait for one.
    rejected
        Commands with a bad PRP (Invalid PRP Offset), or whose list could not be read (Data
        Transfer Error).
    cancel, cancelled, found
        Slots whose command is to be aborted, and a pulse that answers each: ``found`` if it waits
        for its list, so that it will be `rejected` with Command Abort Requested once that has come.
        Not used without `Config.abort_commands`.
    list_done, list_done_slot, list_done_error
        A pulse: a list read has ended; never refused.
    write_beat, write_data, write_mask
        Writes into the inbox's lists.
    fetch, deliver
        Blocks to move from the host into a line and from a line to the host.
    read_request, write_request
        What they become: kinds BLOCK and LIST.
    zero, discard
        Lines of hostless commands: to be filled with zeros, and whose contents nobody wants.
    compare
        Blocks that have been read, to be compared with the host's.
    delivers, delivers_slot, delivers_line
        A pulse: ``deliver`` has been taken.

    Rate: ``admit`` in 4 cycles; a list in 6 cycles and one for each entry; a block in 5 cycles, in
    7 when it spans two pages, 2 more of a command that is not aligned to blocks. Back-pressure on
    one direction's requests does not hold the other's, nor does that on ``command`` hold either.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "admit": In(stream.Signature(admit(config))),
                "again": In(stream.Signature(again(config))),
                "zero": Out(stream.Signature(zeros(config))),
                "discard": Out(stream.Signature(unsent(config))),
                "compare": Out(stream.Signature(comparison(config))),
                "command": Out(stream.Signature(command(config))),
                "rejected": Out(stream.Signature(rejected(config))),
                "cancel": In(stream.Signature(config.slot_bits)),
                "cancelled": Out(1),
                "found": Out(1),
                "list_done": In(1),
                "list_done_slot": In(config.slot_bits),
                "list_done_error": In(1),
                "write_beat": In(bits_for_count(list_beats(config))),
                "write_data": In(config.data_width),
                "write_mask": In(config.beat_dwords),
                "fetch": In(stream.Signature(transfer(config))),
                "deliver": In(stream.Signature(transfer(config))),
                "read_request": Out(stream.Signature(read_request(config))),
                "write_request": Out(stream.Signature(write_request(config))),
                "delivers": Out(1),
                "delivers_slot": Out(config.slot_bits),
                "delivers_line": Out(config.line_bits),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        index_bits = bits_for_count(config.transfer_blocks + 2)
        m.submodules.lists = lists = ListMemory(config=config)
        m.submodules.fates = fates = ListFates(config=config)
        examined = {"compares": 1} if config.compare_and_deallocate else {}
        cut = {"head": SECTOR_BITS} if config.sector_emulation else {}
        pointers = data.StructLayout(
            {"prp1": 64, "prp2": 64, "listed": 1, "hostless": 1} | examined | cut
        )
        m.submodules.pointers = pointer_table = memory.Memory(
            shape=pointers, depth=config.commands, init=[]
        )
        pointer_write, pointer_read = pointer_table.write_port(), pointer_table.read_port()
        m.submodules.held = held_table = memory.Memory(
            shape=command(config), depth=config.commands, init=[]
        )
        held_write, held_read = held_table.write_port(), held_table.read_port()
        m.submodules.hopped = hopped_table = memory.Memory(shape=1, depth=config.commands, init=[])
        hopped_write, hopped_read = hopped_table.write_port(), hopped_table.read_port()

        slot = Signal(config.slot_bits)
        aborts = config.abort_commands
        ended = data.StructLayout({"slot": config.slot_bits, "error": 1})
        m.submodules.lists_done = lists_done = fifo.SyncFIFOBuffered(
            width=ended.size, depth=config.commands
        )
        m.submodules.requests = requests = RequestQueues(config=config)
        wiring.connect(m, requests.read_request, wiring.flipped(self.read_request))
        wiring.connect(m, requests.write_request, wiring.flipped(self.write_request))
        list_end = data.View(ended, lists_done.r_data)
        m.d.comb += [
            lists.write_beat.eq(self.write_beat),
            lists.write_data.eq(self.write_data),
            lists.write_mask.eq(self.write_mask),
            lists_done.w_data.eq(Cat(self.list_done_slot, self.list_done_error)),
            lists_done.w_en.eq(self.list_done),
        ]

        with m.If(self.command.ready):
            m.d.sync += self.command.valid.eq(0)
        with m.If(self.rejected.ready):
            m.d.sync += self.rejected.valid.eq(0)
        with m.If(self.zero.ready):
            m.d.sync += self.zero.valid.eq(0)
        with m.If(self.discard.ready):
            m.d.sync += self.discard.valid.eq(0)
        with m.If(self.compare.ready):
            m.d.sync += self.compare.valid.eq(0)

        block = Signal(config.offset_bits)
        line = Signal(config.line_bits)
        to_host = Signal()
        failed = Signal()
        # Entry of the list that is being looked at, counted from PRP2's.
        place = Signal(index_bits)
        last_place = Signal(index_bits)
        bad = Signal()
        hop = Signal(ENTRY_BITS)

        pointer = pointer_read.data
        within = pointer.prp1[:PAGE_SHIFT]
        list_entry = lists.entry
        m.d.comb += [
            pointer_read.addr.eq(slot),
            held_read.addr.eq(slot),
            hopped_read.addr.eq(slot),
            lists.slot.eq(slot),
            lists.place.eq(place),
            fates.slot.eq(slot),
        ]

        # Page of entry `place` + 1 of the command, one cycle after `place`.
        page = Signal(ENTRY_BITS - PAGE_SHIFT)
        m.d.comb += page.eq(Mux(pointer.listed, list_entry, pointer.prp2)[PAGE_SHIFT:])

        def request_move(address, dwords, source, last):
            """One request of the current block, in its direction."""
            m.d.comb += [
                requests.reads.eq(~to_host),
                requests.writes.eq(to_host),
                *assign(
                    requests.read,
                    kind=Kind.BLOCK,
                    index=line,
                    last=last,
                    address=address,
                    dwords=dwords,
                    target=Cat(source, line),
                ),
                *assign(
                    requests.write,
                    line=line,
                    last=last,
                    address=address,
                    dwords=dwords,
                    source=Cat(source, line),
                ),
            ]

        def request_list(address, dwords, first_place):
            m.d.comb += [
                requests.reads.eq(1),
                *assign(
                    requests.read,
                    kind=Kind.LIST,
                    index=slot,
                    last=1,
                    address=address,
                    dwords=dwords,
                    target=Cat(
                        Const(0, (ENTRY_DWORDS - 1).bit_length()),
                        first_place[: config.transfer_bits],
                        slot,
                    ),
                ),
            ]

        def reject(code: StatusCode):
            more = code != StatusCode.ABORT_REQUESTED
            return [
                self.rejected.valid.eq(1),
                *assign(self.rejected.payload, slot=slot, status=status_field(code, more=more)),
            ]

        def leave_list():
            m.d.comb += fates.changes.eq(1)
            m.next = "CHOOSE"

        # Pages of a command after the first: list entries, when there is more than one. Measured
        # in CHOOSE for the command that comes, else for the one of `slot`.
        admitted = Signal(admit(config))
        asked = Signal(command(config))
        in_admit = Signal()
        in_choose = Signal()
        coming = self.admit.payload
        m.submodules.measure = measure = Measure(config=config)
        more, here, crosses = measure.more, measure.here, measure.crosses
        m.d.comb += [
            measure.command.eq(
                Mux(in_choose, coming.command.as_value(), held_read.data.as_value())
            ),
            measure.prp1.eq(Mux(in_choose, coming.prp1, pointer.prp1)),
            measure.prp2.eq(Mux(in_choose, coming.prp2, pointer.prp2)),
            asked.eq(Mux(in_admit, admitted.command.as_value(), held_read.data.as_value())),
            pointer_write.addr.eq(slot),
            held_write.addr.eq(slot),
            held_write.data.eq(admitted.command),
            *assign(pointer_write.data, prp1=admitted.prp1, prp2=admitted.prp2, listed=more > 1),
            pointer_write.data.hostless.eq(admitted.hostless),
            hopped_write.addr.eq(slot),
        ]
        if config.compare_and_deallocate:
            m.d.comb += pointer_write.data.compares.eq(admitted.compares)
        moves_data = Signal()
        m.d.sync += moves_data.eq(
            (coming.command.opcode != HostOpcode.FLUSH) & ~coming.hostless
        )
        next_part = Signal(command(config))
        m.d.comb += [
            next_part.eq(held_read.data),
            next_part.block.eq(held_read.data.block - PART_STEP * config.transfer_blocks),
            next_part.blocks.eq(config.transfer_blocks - 1),
        ]

        # What of the current block the host means.
        m.submodules.span = span = SectorSpan(config=config)
        whole = held_read.data
        m.d.comb += [span.block.eq(block), span.blocks.eq(whole.blocks), span.within.eq(within)]
        lowest = Signal()
        if config.sector_emulation:
            m.d.comb += [
                pointer_write.data.head.eq(admitted.head),
                next_part.head.eq(Mux(lowest, pointer.head, 0)),
                next_part.tail.eq(0),
                span.head.eq(whole.head),
                span.tail.eq(whole.tail),
            ]

        ends_free = ~self.command.valid & ~self.rejected.valid
        read_room = requests.read_room
        can_deliver = (
            self.deliver.valid
            & requests.write_room
            & ~self.discard.valid
            & ~self.compare.valid
        )
        can_fetch = self.fetch.valid & read_room & ~self.zero.valid
        # This one is never rejected, so it need not wait for a command that is.
        can_repeat = self.again.valid & ~self.command.valid
        can_list = lists_done.r_rdy & ends_free & read_room
        can_admit = self.admit.valid & ends_free & read_room

        with m.FSM(name="resolve") as fsm:
            with m.State("CHOOSE"):
                m.d.comb += in_choose.eq(1)
                m.d.sync += [bad.eq(0), failed.eq(0)]
                with m.If(can_deliver):
                    m.d.comb += [
                        self.deliver.ready.eq(1),
                        self.delivers.eq(1),
                    ]
                    m.d.sync += [
                        slot.eq(self.deliver.payload.slot),
                        block.eq(self.deliver.payload.offset),
                        line.eq(self.deliver.payload.line),
                        to_host.eq(1),
                    ]
                    m.next = "LOAD"
                with m.Elif(can_fetch):
                    m.d.comb += self.fetch.ready.eq(1)
                    m.d.sync += [
                        slot.eq(self.fetch.payload.slot),
                        block.eq(self.fetch.payload.offset),
                        line.eq(self.fetch.payload.line),
                        to_host.eq(0),
                    ]
                    m.next = "LOAD"
                with m.Elif(can_repeat):
                    m.d.comb += self.again.ready.eq(1)
                    m.d.sync += slot.eq(self.again.payload.slot)
                    if config.sector_emulation:
                        m.d.sync += lowest.eq(self.again.payload.lowest)
                    m.next = "LOAD_PART"
                if aborts:
                    with m.Elif(self.cancel.valid):
                        m.d.comb += self.cancel.ready.eq(1)
                        m.d.sync += slot.eq(self.cancel.payload)
                        m.next = "LOOK"
                with m.Elif(can_list):
                    m.d.comb += lists_done.r_en.eq(1)
                    m.d.sync += [slot.eq(list_end.slot), failed.eq(list_end.error)]
                    m.next = "LOAD_LIST"
                with m.Elif(can_admit):
                    m.d.comb += self.admit.ready.eq(1)
                    m.d.sync += [
                        admitted.eq(self.admit.payload),
                        slot.eq(self.admit.payload.command.slot),
                    ]
                    m.next = "ADMIT"

            with m.State("ADMIT"):
                m.d.comb += [
                    in_admit.eq(1),
                    pointer_write.en.eq(1),
                    held_write.en.eq(1),
                    hopped_write.en.eq(1),
                    fates.changes.eq(1),
                ]
                m.next = "CHOOSE"
                with m.If(moves_data & measure.unaligned_first):
                    m.d.sync += reject(StatusCode.INVALID_PRP_OFFSET)
                with m.Elif(moves_data & (more == 1) & measure.unaligned_second):
                    m.d.sync += reject(StatusCode.INVALID_PRP_OFFSET)
                with m.Elif(moves_data & (more > 1)):
                    with m.If(measure.unaligned_list):
                        m.d.sync += reject(StatusCode.INVALID_PRP_OFFSET)
                    with m.Else():
                        m.d.comb += fates.following.waits.eq(1)
                        first_part = Mux(crosses, here, more)
                        request_list(admitted.prp2, first_part << 1, Const(0, index_bits))
                with m.Else():
                    m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(asked)]

            with m.State("LOAD_PART"):
                m.next = "REPEAT"

            with m.State("REPEAT"):
                m.d.comb += [held_write.data.eq(next_part), held_write.en.eq(1)]
                m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(next_part)]
                m.next = "CHOOSE"

            # A list, or its first part, has arrived.
            with m.State("LOAD_LIST"):
                m.next = "MEASURE"

            with m.State("MEASURE"):
                m.next = "JUDGE"

            with m.State("JUDGE"):
                m.d.sync += last_place.eq(more - 1)
                with m.If(failed | fates.now.cancelled):
                    m.d.sync += reject(StatusCode.DATA_TRANSFER_ERROR)
                    with m.If(fates.now.cancelled):
                        m.d.sync += reject(StatusCode.ABORT_REQUESTED)
                    leave_list()
                with m.Elif(crosses & ~hopped_read.data):
                    m.d.sync += place.eq(here - 1)
                    m.next = "LOAD_HOP"
                with m.Else():
                    m.d.sync += place.eq(0)
                    m.next = "CHECK_FIRST"

            with m.State("LOAD_HOP"):
                m.next = "READ_HOP"

            with m.State("READ_HOP"):
                m.d.sync += hop.eq(list_entry)
                m.next = "HOP"

            with m.State("HOP"):
                m.d.comb += hopped_write.data.eq(1)
                m.next = "CHOOSE"
                with m.If(hop[:PAGE_SHIFT].any()):
                    m.d.sync += reject(StatusCode.INVALID_PRP_OFFSET)
                    leave_list()
                with m.Else():
                    m.d.comb += hopped_write.en.eq(1)
                    request_list(hop, (more - place) << 1, place)

            with m.State("CHECK_FIRST"):
                m.d.sync += place.eq(1)
                m.next = "CHECK"

            # `list_entry` is entry `place` - 1.
            with m.State("CHECK"):
                m.d.sync += [
                    bad.eq(bad | list_entry[:PAGE_SHIFT].any()),
                    place.eq(place + 1),
                ]
                with m.If(place > last_place):
                    m.next = "PASS"

            with m.State("PASS"):
                with m.If(bad):
                    m.d.sync += reject(StatusCode.INVALID_PRP_OFFSET)
                with m.Else():
                    m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(asked)]
                leave_list()

            if aborts:
                with m.State("LOOK"):
                    m.next = "CANCEL"

                with m.State("CANCEL"):
                    m.d.comb += [
                        self.cancelled.eq(1),
                        self.found.eq(fates.now.waits),
                        fates.following.waits.eq(fates.now.waits),
                        fates.following.cancelled.eq(fates.now.waits),
                        fates.changes.eq(1),
                    ]
                    m.next = "CHOOSE"

            # A block: entry `block`, and the next one when PRP1 begins inside its page.
            with m.State("LOAD"):
                m.d.sync += place.eq(block - 1)
                m.next = "LOCATE"

            with m.State("LOCATE"):
                m.d.sync += place.eq(block)
                m.next = "MOVE"
                if config.sector_emulation:
                    with m.If((whole.head | whole.tail).any()):
                        m.next = "SPAN"

            with m.State("MOVE"):
                first_page = Mux(span.entry == 0, pointer.prp1[PAGE_SHIFT:], page)
                m.next = "CHOOSE"
                with m.If(pointer.hostless):
                    with m.If(to_host):
                        m.d.sync += [
                            self.discard.valid.eq(1),
                            *assign(self.discard.payload, line=line, status=Status.SUCCESS),
                        ]
                    with m.Else():
                        m.d.sync += [self.zero.valid.eq(1), self.zero.payload.line.eq(line)]
                        if config.sector_emulation:
                            m.d.sync += assign(
                                self.zero.payload, first=span.first, last=span.last
                            )
                if config.compare_and_deallocate:
                    with m.Elif(to_host & pointer.compares):
                        m.d.sync += [
                            self.compare.valid.eq(1),
                            *assign(self.compare.payload, slot=slot, offset=block, line=line),
                        ]
                        if config.sector_emulation:
                            m.d.sync += assign(
                                self.compare.payload, first=span.first, last=span.last
                            )
                with m.Else():
                    request_move(
                        Cat(span.offset, first_page), span.dwords, span.source, ~span.spans
                    )
                    with m.If(span.spans):
                        m.next = "MOVE_REST"

            with m.State("MOVE_REST"):
                request_move(Cat(Const(0, PAGE_SHIFT), page), span.rest, span.rest_source, 1)
                m.next = "CHOOSE"

            # A block of a command that is not aligned: its first entry may be the one before.
            if config.sector_emulation:
                with m.State("SPAN"):
                    m.d.sync += place.eq(span.entry - 1)
                    m.next = "AIM"

                with m.State("AIM"):
                    m.d.sync += place.eq(span.entry)
                    m.next = "MOVE"

            anything = can_deliver | can_fetch | can_repeat | can_list | can_admit
            if aborts:
                anything |= self.cancel.valid
            idle = fsm.ongoing("CHOOSE") & ~anything
        m.d.comb += [
            self.delivers_slot.eq(self.deliver.payload.slot),
            self.delivers_line.eq(self.deliver.payload.line),
            self.busy.eq(
                ~idle
                | self.list_done
                | requests.busy
                | moves(lists_done, 0)
            ),
        ]
        return m
