"""PRP entries: lists are fetched before a command is passed on, then blocks find their pages."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.host_data import transfer
from hdl.flow.host_memory import Kind, read_request, write_request
from hdl.kit.optional import optional
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table
from hdl.nvme.codes import PAGE_SHIFT, StatusCode, status_field
from hdl.nvme.commands.sector_span import SectorSpan
from hdl.nvme.prp.prp_lists import ENTRY_BITS, ListMemory, ListWaits, Measure, list_beats
from hdl.nvme.prp.requests import RequestQueues
from hdl.nvme.records import (
    InboxWrite,
    admit,
    again,
    assign,
    comparison,
    list_done,
    rejected,
    sending,
    unsent,
    zeros,
)

ENTRY_DWORDS = ENTRY_BITS // 32

PART_STEP = 1
"""Transfers between a part of a long command and the next one below."""


def pointers(config: Config) -> data.StructLayout:
    """What is kept of a command's entries.

    ``listed``: PRP2 points to a list. ``hostless``: it has no entries. ``compares``: its blocks are
    compared with the host's. ``head``: as in its `command`. Both read as 0 where a configuration
    has no such commands.
    """
    return data.StructLayout(
        {"prp1": 64, "prp2": 64, "listed": 1, "hostless": 1}
        | optional(config.compare_and_deallocate, {"compares": 1})
        | optional(config.sector_emulation, {"head": SECTOR_BITS})
    )


class Prp(wiring.Component):
    """Passes commands on once their PRPs are known good, and turns blocks into host requests.

    Entry 0 of a command is PRP1. It may begin inside its page, and then every block spans the end
    of one page and the begin of the next. Entry 1 is PRP2 when the command spans two pages. When it
    spans more, PRP2 points to the list of all entries from 1 on (NVMe 1.4 section 4.3). A list that
    reaches the end of a page goes on where that page's last entry points. The first and last blocks
    of a command may not be meant as a whole. Then `SectorSpan` says where each block lies.

    Parameters
    ----------
    config
        Sizes. A command spans at most ``transfer_blocks`` + 1 pages. So its list has at most
        ``transfer_blocks`` entries and crosses at most one page end.

    Ports
    -----
    admit
        Decoded commands.
    again
        Slots whose command (a hostless one) goes on with the ``transfer_blocks`` blocks below.
    zero
        Lines of hostless commands that are to be filled with zeros.
    discard
        Lines of hostless commands whose contents nobody wants.
    compare
        Blocks that have been read, to be compared with the host's.
    command
        Commands whose PRPs are at hand. Those without a list pass those that wait for one.
    rejected
        Commands with a bad PRP (Invalid PRP Offset), or whose list could not be read (Data
        Transfer Error).
    cancel
        Slots whose command is to be aborted. Not used without `Config.abort_commands`.
    cancelled
        Answers ``cancel``. It is 1 if the command waits for its list. Then it will be `rejected`
        with Command Abort Requested once that has come.
    list_done
        The read of a command's list has ended.
    inbox
        Beats of the inbox's lists.
    fetch
        Blocks to move from the host into a line.
    deliver
        Blocks to move from a line to the host.
    read_request
        Reads of blocks and of lists, kinds BLOCK and LIST.
    write_request
        Writes of blocks.
    delivers
        What ``deliver`` has been taken for.
    busy
        Something moves without anybody else being waited for.

    Rate: ``admit`` in 4 cycles. A list in 6 cycles and one for each entry. A block in 5 cycles, in
    7 when it spans two pages, and in 2 more if its command is not aligned to blocks.
    Back-pressure on one direction's requests does not hold the other's. Back-pressure on
    ``command`` holds neither.
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
                "cancelled": Out(Pulse(1)),
                "list_done": In(Pulse(list_done(config))),
                "inbox": In(InboxWrite(config, list_beats(config))),
                "fetch": In(stream.Signature(transfer(config))),
                "deliver": In(stream.Signature(transfer(config))),
                "read_request": Out(stream.Signature(read_request(config))),
                "write_request": Out(stream.Signature(write_request(config))),
                "delivers": Out(Pulse(sending(config))),
                "busy": Out(1),
            }
        )

        # The command at hand. What is kept of it comes a cycle after its slot.
        self._slot = Signal(config.slot_bits)
        self._admitted = Signal(admit(config))  # as it comes, with its entries
        self._pointers = Table(pointers(config), config.commands)
        self._commands = Table(command(config), config.commands)
        self._hops = Table(1, config.commands)
        self._pointer = self._pointers.reads[0].data  # its entries
        self._kept = self._commands.reads[0].data  # the command itself
        self._hopped = self._hops.reads[0].data  # the rest of its list has been asked for
        self._asked = Signal(command(config))  # the command as it is passed on
        self._in_admit = Signal()  # the command is the one that comes
        self._in_choose = Signal()  # `Measure` looks at the one that is offered
        self._moves_data = Signal()
        self._next_part = Signal(command(config))
        self._lowest = Signal()  # that part is the last

        # Its list.
        # Of an entry, counted from PRP2's.
        self._list_place = Signal(bits_for_count(config.transfer_blocks + 2))
        self._last_place = Signal.like(self._list_place)  # of the last entry
        self._hop_entry = Signal(ENTRY_BITS)  # where the rest of the list is
        self._page = Signal(ENTRY_BITS - PAGE_SHIFT)  # of the next entry, a cycle later
        self._failed = Signal()  # it could not be read
        self._bad = Signal()  # it has an entry that cannot be

        # The block at hand, its line, and where it goes.
        self._block = Signal(config.offset_bits)
        self._line = Signal(config.line_bits)
        self._to_host = Signal()

        self._lists = ListMemory(config=config)
        self._list_waits = ListWaits(config=config)
        self._measure = Measure(config=config)
        self._span = SectorSpan(config=config)
        self._lists_done = Queue(list_done(config), config.commands)
        self._requests = RequestQueues(config=config)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.lists = self._lists
        m.submodules.list_waits = self._list_waits
        m.submodules.pointers = self._pointers
        m.submodules.commands = self._commands
        m.submodules.hopped = self._hops
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
            self._judge_list(m)
            self._hop(m)
            self._check_list(m)
            if self._config.abort_commands:
                self._cancel(m)
            self._move_block(m)
            if self._config.sector_emulation:
                self._locate_sectors(m)
            idle = fsm.ongoing("CHOOSE") & ~anything
        m.d.comb += [
            self.delivers.payload.slot.eq(self.deliver.payload.slot),
            self.delivers.payload.line.eq(self.deliver.payload.line),
            self.busy.eq(
                ~idle | self.list_done.valid | self._requests.busy | self._lists_done.filling
            ),
        ]
        return m

    def _connect_lists(self, m: Module) -> None:
        """Lists as they arrive, and requests to the host."""
        lists, lists_done = self._lists, self._lists_done
        connect(m, self._requests.read_request, flipped(self.read_request))
        connect(m, self._requests.write_request, flipped(self.write_request))
        connect(m, flipped(self.inbox), lists.inbox)
        m.d.comb += [
            lists.slot.eq(self._slot),
            lists.place.eq(self._list_place),
            lists_done.input.payload.eq(self.list_done.payload),
            lists_done.input.valid.eq(self.list_done.valid),
            self._list_waits.slot.eq(self._slot),
        ]

    def _connect_command(self, m: Module) -> None:
        """What is kept of the command at hand, and its pages after the first.

        They are list entries when there is more than one. Those of the command that is offered are
        measured in CHOOSE, else those of ``slot``.
        """
        config, slot, admitted, measure = self._config, self._slot, self._admitted, self._measure
        pointer, kept, next_part = self._pointer, self._kept, self._next_part
        offered, in_choose = self.admit.payload, self._in_choose
        for table in (self._pointers, self._commands, self._hops):
            m.d.comb += [table.reads[0].address.eq(slot), table.write.address.eq(slot)]
        m.d.comb += [
            measure.command.eq(Mux(in_choose, offered.command.as_value(), kept.as_value())),
            measure.prp1.eq(Mux(in_choose, offered.prp1, pointer.prp1)),
            measure.prp2.eq(Mux(in_choose, offered.prp2, pointer.prp2)),
            self._asked.eq(Mux(self._in_admit, admitted.command.as_value(), kept.as_value())),
            self._commands.write.data.eq(admitted.command),
            *assign(
                self._pointers.write.data,
                prp1=admitted.prp1,
                prp2=admitted.prp2,
                listed=measure.more > 1,
                hostless=admitted.hostless,
                compares=admitted.compares,
                head=admitted.head,
            ),
            next_part.eq(kept),
            *assign(
                next_part,
                block=kept.block - PART_STEP * config.transfer_blocks,
                blocks=config.transfer_blocks - 1,
                head=Mux(self._lowest, pointer.head, 0),
                tail=0,
            ),
        ]
        m.d.sync += self._moves_data.eq(
            (offered.command.opcode != HostOpcode.FLUSH) & ~offered.hostless
        )

    def _connect_block(self, m: Module) -> None:
        """Where the block at hand lies in its pages, and what of it the host means."""
        span, pointer, kept = self._span, self._pointer, self._kept
        m.d.comb += [
            self._page.eq(Mux(pointer.listed, self._lists.entry, pointer.prp2)[PAGE_SHIFT:]),
            span.block.eq(self._block),
            span.blocks.eq(kept.blocks),
            span.head.eq(kept.head),
            span.tail.eq(kept.tail),
            span.within.eq(pointer.prp1[:PAGE_SHIFT]),
        ]

    def _choose(self, m: Module) -> Value:
        """The state CHOOSE: what can be done next, most urgent first. Returns whether anything
        can."""
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
        can_list = self._lists_done.output.valid & ends_free & read_room
        can_admit = self.admit.valid & ends_free & read_room
        with m.State("CHOOSE"):
            m.d.comb += self._in_choose.eq(1)
            m.d.sync += [self._bad.eq(0), self._failed.eq(0)]
            with m.If(can_deliver):
                m.d.comb += self.delivers.valid.eq(1)
                self._take_block(m, self.deliver, to_host=1)
            with m.Elif(can_fetch):
                self._take_block(m, self.fetch, to_host=0)
            with m.Elif(can_repeat):
                m.d.comb += self.again.ready.eq(1)
                m.d.sync += [
                    self._slot.eq(self.again.payload.slot),
                    self._lowest.eq(self.again.payload.lowest),
                ]
                m.next = "LOAD_PART"
            if self._config.abort_commands:
                with m.Elif(self.cancel.valid):
                    m.d.comb += self.cancel.ready.eq(1)
                    m.d.sync += self._slot.eq(self.cancel.payload)
                    m.next = "LOOK"
            with m.Elif(can_list):
                ended = self._lists_done.output.payload
                m.d.comb += self._lists_done.output.ready.eq(1)
                m.d.sync += [self._slot.eq(ended.slot), self._failed.eq(ended.error)]
                m.next = "LOAD_LIST"
            with m.Elif(can_admit):
                m.d.comb += self.admit.ready.eq(1)
                m.d.sync += [
                    self._admitted.eq(self.admit.payload),
                    self._slot.eq(self.admit.payload.command.slot),
                ]
                m.next = "ADMIT"
        return can_deliver | can_fetch | can_repeat | can_list | can_admit | self.cancel.valid

    def _take_block(self, m: Module, moves, *, to_host: int) -> None:
        """Ends a state: the block that stream ``moves`` offers is at hand."""
        m.d.comb += moves.ready.eq(1)
        m.d.sync += [
            self._slot.eq(moves.payload.slot),
            self._block.eq(moves.payload.offset),
            self._line.eq(moves.payload.line),
            self._to_host.eq(to_host),
        ]
        m.next = "LOAD"

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
        m.d.comb += self._list_waits.changes.eq(1)
        m.next = "CHOOSE"

    def _request_list(
        self, m: Module, *, address: Value, entries: Value, list_place: Value
    ) -> None:
        """Reads ``entries`` of the command's list. The first of them is ``list_place``."""
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
                    list_place[: self._config.transfer_bits],
                    self._slot,
                ),
            ),
        ]

    def _admit(self, m: Module) -> None:
        """The state ADMIT: a command comes. It is passed on, is rejected, or waits for its list."""
        admitted, measure, list_waits = self._admitted, self._measure, self._list_waits
        moves_data, list_place = self._moves_data, self._list_place
        with m.State("ADMIT"):
            m.d.comb += [
                self._in_admit.eq(1),
                *self._pointers.store(),
                *self._commands.store(),
                *self._hops.store(),
                list_waits.changes.eq(1),
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
                    m.d.comb += list_waits.following.waits.eq(1)
                    first_part = Mux(measure.crosses, measure.here, measure.more)
                    self._request_list(
                        m,
                        address=admitted.prp2,
                        entries=first_part,
                        list_place=Const(0, len(list_place)),
                    )
            with m.Else():
                self._pass_on(m)

    def _repeat(self, m: Module) -> None:
        """The states LOAD_PART and REPEAT: a command goes on with its next part."""
        with m.State("LOAD_PART"):
            m.next = "REPEAT"

        with m.State("REPEAT"):
            m.d.comb += self._commands.store(data=self._next_part)
            m.d.sync += [self.command.valid.eq(1), self.command.payload.eq(self._next_part)]
            m.next = "CHOOSE"

    def _judge_list(self, m: Module) -> None:
        """The states LOAD_LIST, MEASURE and JUDGE, of a command whose list has arrived, or the
        first part of it. It is rejected, or its list is looked at."""
        measure, list_waits = self._measure, self._list_waits
        with m.State("LOAD_LIST"):
            m.next = "MEASURE"

        with m.State("MEASURE"):
            m.next = "JUDGE"

        with m.State("JUDGE"):
            m.d.sync += self._last_place.eq(measure.more - 1)
            with m.If(self._failed | list_waits.now.cancelled):
                self._reject(m, StatusCode.DATA_TRANSFER_ERROR)
                with m.If(list_waits.now.cancelled):
                    self._reject(m, StatusCode.ABORT_REQUESTED)
                self._leave_list(m)
            with m.Elif(measure.crosses & ~self._hopped):
                m.d.sync += self._list_place.eq(measure.here - 1)
                m.next = "LOAD_HOP"
            with m.Else():
                m.d.sync += self._list_place.eq(0)
                m.next = "CHECK_FIRST"

    def _hop(self, m: Module) -> None:
        """The states LOAD_HOP, READ_HOP and HOP: the last entry of the page says where the rest of
        the list is. The rest is asked for."""
        list_place, hop = self._list_place, self._hop_entry
        with m.State("LOAD_HOP"):
            m.next = "READ_HOP"

        with m.State("READ_HOP"):
            m.d.sync += hop.eq(self._lists.entry)
            m.next = "HOP"

        with m.State("HOP"):
            m.d.comb += self._hops.write.data.eq(1)
            m.next = "CHOOSE"
            with m.If(hop[:PAGE_SHIFT].any()):
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
                self._leave_list(m)
            with m.Else():
                m.d.comb += self._hops.store()
                self._request_list(
                    m,
                    address=hop,
                    entries=self._measure.more - list_place,
                    list_place=list_place,
                )

    def _check_list(self, m: Module) -> None:
        """The states CHECK_FIRST, CHECK and PASS: every entry must be the begin of a page. Then the
        command is passed on."""
        list_place, list_entry, bad = self._list_place, self._lists.entry, self._bad
        with m.State("CHECK_FIRST"):
            m.d.sync += list_place.eq(1)
            m.next = "CHECK"

        # `list_entry` is entry `list_place` - 1.
        with m.State("CHECK"):
            m.d.sync += [
                bad.eq(bad | list_entry[:PAGE_SHIFT].any()),
                list_place.eq(list_place + 1),
            ]
            with m.If(list_place > self._last_place):
                m.next = "PASS"

        with m.State("PASS"):
            with m.If(bad):
                self._reject(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Else():
                self._pass_on(m)
            self._leave_list(m)

    def _cancel(self, m: Module) -> None:
        """The states LOOK and CANCEL, of a command that is to be aborted."""
        list_waits = self._list_waits
        with m.State("LOOK"):
            m.next = "CANCEL"

        with m.State("CANCEL"):
            m.d.comb += [
                self.cancelled.valid.eq(1),
                self.cancelled.payload.eq(list_waits.now.waits),
                list_waits.following.waits.eq(list_waits.now.waits),
                list_waits.following.cancelled.eq(list_waits.now.waits),
                list_waits.changes.eq(1),
            ]
            m.next = "CHOOSE"

    def _move_block(self, m: Module) -> None:
        """The states LOAD, LOCATE, MOVE and MOVE_REST, of a block: it is moved in its entry, and in
        the next one when PRP1 begins inside its page."""
        block, span, page, pointer = self._block, self._span, self._page, self._pointer
        with m.State("LOAD"):
            m.d.sync += self._list_place.eq(block - 1)
            m.next = "LOCATE"

        with m.State("LOCATE"):
            m.d.sync += self._list_place.eq(block)
            m.next = "MOVE"
            if self._config.sector_emulation:
                with m.If((self._kept.head | self._kept.tail).any()):
                    m.next = "SPAN"

        with m.State("MOVE"):
            first_page = Mux(span.entry == 0, pointer.prp1[PAGE_SHIFT:], page)
            m.next = "CHOOSE"
            with m.If(pointer.hostless):
                self._move_nothing(m)
            with m.Elif(self._to_host & pointer.compares):
                self._compare_block(m)
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

    def _locate_sectors(self, m: Module) -> None:
        """The states SPAN and AIM, of a block of a command that is not aligned. Its first entry may
        be the one before."""
        with m.State("SPAN"):
            m.d.sync += self._list_place.eq(self._span.entry - 1)
            m.next = "AIM"

        with m.State("AIM"):
            m.d.sync += self._list_place.eq(self._span.entry)
            m.next = "MOVE"

    def _move_nothing(self, m: Module) -> None:
        """A block of a hostless command: its line is filled with zeros, or nobody wants it."""
        span, line = self._span, self._line
        with m.If(self._to_host):
            m.d.sync += [
                self.discard.valid.eq(1),
                *assign(self.discard.payload, line=line, status=Status.SUCCESS),
            ]
        with m.Else():
            m.d.sync += [
                self.zero.valid.eq(1),
                *assign(self.zero.payload, line=line, first=span.first, last=span.last),
            ]

    def _compare_block(self, m: Module) -> None:
        """A block of a Compare: `Examine` compares it with the host's."""
        m.d.sync += [
            self.compare.valid.eq(1),
            *assign(
                self.compare.payload,
                slot=self._slot,
                offset=self._block,
                line=self._line,
                first=self._span.first,
                last=self._span.last,
            ),
        ]

    def _request_move(
        self, m: Module, *, address: Value, dwords: Value, source: Value, last: ValueLike
    ) -> None:
        """Asks for one piece of the block, in its direction. ``source`` is where it begins in its
        line."""
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
