"""PRP entries: lists are fetched before a command is passed on, then blocks find their pages."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.host_data import transfer
from hdl.flow.host_memory import Kind, read_request, write_request
from hdl.kit.queue import Queue
from hdl.nvme.codes import PAGE_SHIFT, StatusCode, status_field
from hdl.nvme.commands.sector_span import SectorSpan
from hdl.nvme.prp.prp_lists import ENTRY_BITS, ListFates, ListMemory, Measure, list_beats
from hdl.nvme.prp.requests import RequestQueues
from hdl.nvme.records import admit, again, assign, comparison, rejected, unsent, zeros

ENTRY_DWORDS = ENTRY_BITS // 32

PART_STEP = 1
"""Transfers between a part of a long command and the next one below."""


def pointers(config: Config) -> data.StructLayout:
    """What is kept of a command's entries. ``listed``: PRP2 points to a list. ``hostless``: it has
    no entries. ``compares``: its blocks are compared. ``head``: as in its `command`."""
    examined = {"compares": 1} if config.compare_and_deallocate else {}
    cut = {"head": SECTOR_BITS} if config.sector_emulation else {}
    return data.StructLayout(
        {"prp1": 64, "prp2": 64, "listed": 1, "hostless": 1} | examined | cut
    )


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

        # The command at hand: its slot; it as it comes (with its entries); and a cycle after
        # ``slot`` what is kept of it: its entries, itself, and whether the rest of its list has
        # been asked for.
        self._slot = Signal(config.slot_bits)
        self._admitted = Signal(admit(config))
        self._pointer_table = memory.Memory(
            shape=pointers(config), depth=config.commands, init=[]
        )
        self._held_table = memory.Memory(shape=command(config), depth=config.commands, init=[])
        self._hopped_table = memory.Memory(shape=1, depth=config.commands, init=[])
        self._pointer_write = self._pointer_table.write_port()
        pointer_read = self._pointer_table.read_port()
        self._held_write, held_read = self._held_table.write_port(), self._held_table.read_port()
        self._hopped_write = self._hopped_table.write_port()
        hopped_read = self._hopped_table.read_port()
        self._reads = pointer_read, held_read, hopped_read
        self._pointer, self._held, self._hopped = (read.data for read in self._reads)
        self._asked = Signal(command(config))  # it as it is passed on
        self._in_admit = Signal()  # it is the one that comes
        self._in_choose = Signal()  # `Measure` looks at the one that is offered
        self._moves_data = Signal()
        self._next_part = Signal(command(config))
        self._lowest = Signal()  # that part is the last

        # Its list: an entry, counted from PRP2's, and a cycle later that entry, and the page of
        # the next one; what was found of it.
        self._place = Signal(bits_for_count(config.transfer_blocks + 2))
        self._page = Signal(ENTRY_BITS - PAGE_SHIFT)
        self._failed = Signal()
        self._bad = Signal()

        # The block at hand, its line, and where it goes.
        self._block = Signal(config.offset_bits)
        self._line = Signal(config.line_bits)
        self._to_host = Signal()

        self._lists = ListMemory(config=config)
        self._fates = ListFates(config=config)
        self._measure = Measure(config=config)
        self._span = SectorSpan(config=config)
        ended = data.StructLayout({"slot": config.slot_bits, "error": 1})
        self._lists_done = Queue(ended, config.commands)
        self._requests = RequestQueues(config=config)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.lists = self._lists
        m.submodules.fates = self._fates
        m.submodules.pointers = self._pointer_table
        m.submodules.held = self._held_table
        m.submodules.hopped = self._hopped_table
        m.submodules.lists_done = self._lists_done
        m.submodules.requests = self._requests
        m.submodules.measure = self._measure
        m.submodules.span = self._span
        for port in (self.command, self.rejected, self.zero, self.discard, self.compare):
            with m.If(port.ready):
                m.d.sync += port.valid.eq(0)
        self._connect_lists(m)
        self._connect_command(m)
        self._connect_block(m)
        with m.FSM(name="resolve") as fsm:
            anything = self._choose(m)
            self._admit(m)
            self._repeat(m)
            self._check_list(m)
            if self._config.abort_commands:
                self._cancel(m)
            self._move_block(m)
            idle = fsm.ongoing("CHOOSE") & ~anything
        m.d.comb += [
            self.delivers_slot.eq(self.deliver.payload.slot),
            self.delivers_line.eq(self.deliver.payload.line),
            self.busy.eq(
                ~idle | self.list_done | self._requests.busy | self._lists_done.filling
            ),
        ]
        return m

    def _connect_lists(self, m: Module) -> None:
        """Lists as they arrive, and requests to the host."""
        lists, lists_done = self._lists, self._lists_done
        connect(m, self._requests.read_request, flipped(self.read_request))
        connect(m, self._requests.write_request, flipped(self.write_request))
        m.d.comb += [
            lists.write_beat.eq(self.write_beat),
            lists.write_data.eq(self.write_data),
            lists.write_mask.eq(self.write_mask),
            lists.slot.eq(self._slot),
            lists.place.eq(self._place),
            lists_done.input.payload.eq(Cat(self.list_done_slot, self.list_done_error)),
            lists_done.input.valid.eq(self.list_done),
            self._fates.slot.eq(self._slot),
        ]

    def _connect_command(self, m: Module) -> None:
        """What is kept of the command at hand, and its pages after the first.

        They are list entries when there is more than one. Those of the command that is offered are
        measured in CHOOSE, else those of ``slot``.
        """
        config, slot, admitted, measure = self._config, self._slot, self._admitted, self._measure
        pointer, held, pointer_write = self._pointer, self._held, self._pointer_write
        offered, in_choose, next_part = self.admit.payload, self._in_choose, self._next_part
        m.d.comb += [read.addr.eq(slot) for read in self._reads]
        m.d.comb += [
            measure.command.eq(Mux(in_choose, offered.command.as_value(), held.as_value())),
            measure.prp1.eq(Mux(in_choose, offered.prp1, pointer.prp1)),
            measure.prp2.eq(Mux(in_choose, offered.prp2, pointer.prp2)),
            self._asked.eq(Mux(self._in_admit, admitted.command.as_value(), held.as_value())),
            pointer_write.addr.eq(slot),
            self._held_write.addr.eq(slot),
            self._held_write.data.eq(admitted.command),
            *assign(pointer_write.data, prp1=admitted.prp1, prp2=admitted.prp2),
            pointer_write.data.listed.eq(measure.more > 1),
            pointer_write.data.hostless.eq(admitted.hostless),
            self._hopped_write.addr.eq(slot),
            next_part.eq(held),
            next_part.block.eq(held.block - PART_STEP * config.transfer_blocks),
            next_part.blocks.eq(config.transfer_blocks - 1),
        ]
        m.d.sync += self._moves_data.eq(
            (offered.command.opcode != HostOpcode.FLUSH) & ~offered.hostless
        )
        if config.compare_and_deallocate:
            m.d.comb += pointer_write.data.compares.eq(admitted.compares)
        if config.sector_emulation:
            m.d.comb += [
                pointer_write.data.head.eq(admitted.head),
                next_part.head.eq(Mux(self._lowest, pointer.head, 0)),
                next_part.tail.eq(0),
            ]

    def _connect_block(self, m: Module) -> None:
        """Where the block at hand lies in its pages, and what of it the host means."""
        span, pointer, held = self._span, self._pointer, self._held
        m.d.comb += [
            self._page.eq(Mux(pointer.listed, self._lists.entry, pointer.prp2)[PAGE_SHIFT:]),
            span.block.eq(self._block),
            span.blocks.eq(held.blocks),
            span.within.eq(pointer.prp1[:PAGE_SHIFT]),
        ]
        if self._config.sector_emulation:
            m.d.comb += [span.head.eq(held.head), span.tail.eq(held.tail)]

    def _choose(self, m: Module) -> Value:
        """The state CHOOSE: what can be done next, most urgent first; whether anything can."""
        config, slot, block, line = self._config, self._slot, self._block, self._line
        to_host, failed, lists_done = self._to_host, self._failed, self._lists_done
        ends_free = ~self.command.valid & ~self.rejected.valid
        read_room = self._requests.read_room
        can_deliver = (
            self.deliver.valid
            & self._requests.write_room
            & ~self.discard.valid
            & ~self.compare.valid
        )
        can_fetch = self.fetch.valid & read_room & ~self.zero.valid
        # This one is never rejected, so it need not wait for a command that is.
        can_repeat = self.again.valid & ~self.command.valid
        can_list = lists_done.output.valid & ends_free & read_room
        can_admit = self.admit.valid & ends_free & read_room
        with m.State("CHOOSE"):
            m.d.comb += self._in_choose.eq(1)
            m.d.sync += [self._bad.eq(0), failed.eq(0)]
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
                    m.d.sync += self._lowest.eq(self.again.payload.lowest)
                m.next = "LOAD_PART"
            if config.abort_commands:
                with m.Elif(self.cancel.valid):
                    m.d.comb += self.cancel.ready.eq(1)
                    m.d.sync += slot.eq(self.cancel.payload)
                    m.next = "LOOK"
            with m.Elif(can_list):
                m.d.comb += lists_done.output.ready.eq(1)
                ended = lists_done.output.payload
                m.d.sync += [slot.eq(ended.slot), failed.eq(ended.error)]
                m.next = "LOAD_LIST"
            with m.Elif(can_admit):
                m.d.comb += self.admit.ready.eq(1)
                m.d.sync += [
                    self._admitted.eq(self.admit.payload),
                    slot.eq(self.admit.payload.command.slot),
                ]
                m.next = "ADMIT"
        anything = can_deliver | can_fetch | can_repeat | can_list | can_admit
        if config.abort_commands:
            anything |= self.cancel.valid
        return anything

    def _pass_on(self, m: Module) -> None:
        """The command's entries are good."""
        m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(self._asked)]

    def _reject(self, m: Module, code: StatusCode) -> None:
        """The command ends with ``code``."""
        status = status_field(code, more=code != StatusCode.ABORT_REQUESTED)
        m.d.sync += [
            self.rejected.valid.eq(1),
            *assign(self.rejected.payload, slot=self._slot, status=status),
        ]

    def _leave_list(self, m: Module) -> None:
        """Ends a state: the command waits for its list no more."""
        m.d.comb += self._fates.changes.eq(1)
        m.next = "CHOOSE"

    def _request_list(self, m: Module, *, address: Value, entries: Value, place: Value) -> None:
        """Reads ``entries`` of the command's list, the first of which is ``place``."""
        requests = self._requests
        m.d.comb += [
            requests.reads.eq(1),
            *assign(
                requests.read,
                kind=Kind.LIST,
                index=self._slot,
                last=1,
                address=address,
                dwords=entries << 1,
                target=Cat(
                    Const(0, (ENTRY_DWORDS - 1).bit_length()),
                    place[: self._config.transfer_bits],
                    self._slot,
                ),
            ),
        ]

    def _admit(self, m: Module) -> None:
        """The state ADMIT, of a command that comes: it is passed on, rejected, or waits for its
        list."""
        admitted, measure, fates = self._admitted, self._measure, self._fates
        moves_data, place = self._moves_data, self._place
        with m.State("ADMIT"):
            m.d.comb += [
                self._in_admit.eq(1),
                self._pointer_write.en.eq(1),
                self._held_write.en.eq(1),
                self._hopped_write.en.eq(1),
                fates.changes.eq(1),
            ]
            m.next = "CHOOSE"
            with m.If(moves_data & measure.unaligned_first):
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Elif(moves_data & (measure.more == 1) & measure.unaligned_second):
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Elif(moves_data & (measure.more > 1)):
                with m.If(measure.unaligned_list):
                    self._reject(m, StatusCode.INVALID_PRP_OFFSET)
                with m.Else():
                    m.d.comb += fates.following.waits.eq(1)
                    first_part = Mux(measure.crosses, measure.here, measure.more)
                    self._request_list(
                        m, address=admitted.prp2, entries=first_part, place=Const(0, len(place))
                    )
            with m.Else():
                self._pass_on(m)

    def _repeat(self, m: Module) -> None:
        """The states LOAD_PART, of a command that goes on with its next part, and REPEAT."""
        with m.State("LOAD_PART"):
            m.next = "REPEAT"

        with m.State("REPEAT"):
            m.d.comb += [self._held_write.data.eq(self._next_part), self._held_write.en.eq(1)]
            m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(self._next_part)]
            m.next = "CHOOSE"

    def _check_list(self, m: Module) -> None:
        """The state LOAD_LIST, of a command whose list, or the first part of it, has arrived, and
        those that follow: it is passed on or rejected, or the rest of its list is asked for."""
        measure, fates, hopped = self._measure, self._fates, self._hopped
        more, here, crosses = measure.more, measure.here, measure.crosses
        place, list_entry = self._place, self._lists.entry
        failed, bad = self._failed, self._bad
        last_place = Signal.like(place)
        hop = Signal(ENTRY_BITS)
        with m.State("LOAD_LIST"):
            m.next = "MEASURE"

        with m.State("MEASURE"):
            m.next = "JUDGE"

        with m.State("JUDGE"):
            m.d.sync += last_place.eq(more - 1)
            with m.If(failed | fates.now.cancelled):
                self._reject(m, StatusCode.DATA_TRANSFER_ERROR)
                with m.If(fates.now.cancelled):
                    self._reject(m, StatusCode.ABORT_REQUESTED)
                self._leave_list(m)
            with m.Elif(crosses & ~hopped):
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
            m.d.comb += self._hopped_write.data.eq(1)
            m.next = "CHOOSE"
            with m.If(hop[:PAGE_SHIFT].any()):
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
                self._leave_list(m)
            with m.Else():
                m.d.comb += self._hopped_write.en.eq(1)
                self._request_list(m, address=hop, entries=more - place, place=place)

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
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Else():
                self._pass_on(m)
            self._leave_list(m)

    def _cancel(self, m: Module) -> None:
        """The state LOOK, of a command that is to be aborted, and the one that follows."""
        fates = self._fates
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

    def _move_block(self, m: Module) -> None:
        """The state LOAD, of a block, and those that follow, up to its requests: in its entry, and
        in the next one when PRP1 begins inside its page."""
        config, slot, block, line = self._config, self._slot, self._block, self._line
        to_host, pointer, held = self._to_host, self._pointer, self._held
        span, place, page = self._span, self._place, self._page
        with m.State("LOAD"):
            m.d.sync += place.eq(block - 1)
            m.next = "LOCATE"

        with m.State("LOCATE"):
            m.d.sync += place.eq(block)
            m.next = "MOVE"
            if config.sector_emulation:
                with m.If((held.head | held.tail).any()):
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
                        m.d.sync += assign(self.zero.payload, first=span.first, last=span.last)
            if config.compare_and_deallocate:
                with m.Elif(to_host & pointer.compares):
                    m.d.sync += [
                        self.compare.valid.eq(1),
                        *assign(self.compare.payload, slot=slot, offset=block, line=line),
                    ]
                    if config.sector_emulation:
                        m.d.sync += assign(self.compare.payload, first=span.first, last=span.last)
            with m.Else():
                self._request_move(
                    m,
                    address=Cat(span.offset, first_page),
                    dwords=span.dwords,
                    source=span.source,
                    last=~span.spans,
                )
                with m.If(span.spans):
                    m.next = "MOVE_REST"

        with m.State("MOVE_REST"):
            self._request_move(
                m,
                address=Cat(Const(0, PAGE_SHIFT), page),
                dwords=span.rest,
                source=span.rest_source,
                last=1,
            )
            m.next = "CHOOSE"

        # A block of a command that is not aligned: its first entry may be the one before.
        if config.sector_emulation:
            with m.State("SPAN"):
                m.d.sync += place.eq(span.entry - 1)
                m.next = "AIM"

            with m.State("AIM"):
                m.d.sync += place.eq(span.entry)
                m.next = "MOVE"

    def _request_move(
        self, m: Module, *, address: Value, dwords: Value, source: Value, last: ValueLike
    ) -> None:
        """One request of the block, in its direction; ``source``: where it begins in its line."""
        line, requests = self._line, self._requests
        m.d.comb += [
            requests.reads.eq(~self._to_host),
            requests.writes.eq(self._to_host),
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
