"""PRP entries: lists are fetched before a command is passed on, then blocks find their pages."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode, command
from hdl.flow.host_data import transfer
from hdl.flow.host_memory import read_request, write_request
from hdl.kit.queue import Queue
from hdl.nvme.codes import PAGE_SHIFT
from hdl.nvme.commands.sector_span import SectorSpan
from hdl.nvme.prp.prp_blocks import BlockAtHand, block_states
from hdl.nvme.prp.prp_commands import CommandAtHand, admit_states, cancel_states, list_states
from hdl.nvme.prp.prp_lists import ENTRY_BITS, ListFates, ListMemory, Measure, list_beats
from hdl.nvme.prp.requests import RequestQueues
from hdl.nvme.records import admit, again, assign, comparison, rejected, unsent, zeros

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
        m.submodules.lists_done = lists_done = Queue(ended, config.commands)
        m.submodules.requests = requests = RequestQueues(config=config)
        wiring.connect(m, requests.read_request, wiring.flipped(self.read_request))
        wiring.connect(m, requests.write_request, wiring.flipped(self.write_request))
        list_end = lists_done.output.payload
        m.d.comb += [
            lists.write_beat.eq(self.write_beat),
            lists.write_data.eq(self.write_data),
            lists.write_mask.eq(self.write_mask),
            lists_done.input.payload.eq(Cat(self.list_done_slot, self.list_done_error)),
            lists_done.input.valid.eq(self.list_done),
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
        bad = Signal()

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

        # Pages of a command after the first: list entries, when there is more than one. Measured
        # in CHOOSE for the command that comes, else for the one of `slot`.
        admitted = Signal(admit(config))
        asked = Signal(command(config))
        in_admit = Signal()
        in_choose = Signal()
        coming = self.admit.payload
        m.submodules.measure = measure = Measure(config=config)
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
            *assign(pointer_write.data, prp1=admitted.prp1, prp2=admitted.prp2),
            pointer_write.data.listed.eq(measure.more > 1),
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
        can_list = lists_done.output.valid & ends_free & read_room
        can_admit = self.admit.valid & ends_free & read_room

        command_at_hand = CommandAtHand(
            config=config,
            ports=self,
            slot=slot,
            admitted=admitted,
            asked=asked,
            measure=measure,
            fates=fates,
            place=place,
            list_entry=list_entry,
            pointer_write=pointer_write,
            held_write=held_write,
            hopped_write=hopped_write,
            requests=requests,
        )
        block_at_hand = BlockAtHand(
            config=config,
            ports=self,
            slot=slot,
            block=block,
            line=line,
            to_host=to_host,
            pointer=pointer,
            whole=whole,
            span=span,
            place=place,
            page=page,
            requests=requests,
        )

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
                    m.d.comb += lists_done.output.ready.eq(1)
                    m.d.sync += [slot.eq(list_end.slot), failed.eq(list_end.error)]
                    m.next = "LOAD_LIST"
                with m.Elif(can_admit):
                    m.d.comb += self.admit.ready.eq(1)
                    m.d.sync += [
                        admitted.eq(self.admit.payload),
                        slot.eq(self.admit.payload.command.slot),
                    ]
                    m.next = "ADMIT"

            admit_states(
                m,
                command_at_hand,
                moves_data=moves_data,
                in_admit=in_admit,
                next_part=next_part,
            )
            list_states(m, command_at_hand, hopped=hopped_read.data, failed=failed, bad=bad)
            if aborts:
                cancel_states(m, command_at_hand)
            block_states(m, block_at_hand)

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
                | lists_done.filling
            ),
        ]
        return m
