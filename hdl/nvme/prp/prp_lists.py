"""PRP lists of the commands inside: their entries, and which commands wait for theirs."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, Config, bits_for_count
from hdl.flow.host_command import command
from hdl.kit.disjoint import DISJOINT
from hdl.kit.table import Table
from hdl.nvme.codes import PAGE_SHIFT
from hdl.nvme.commands.sector_span import SECTOR_SHIFT
from hdl.nvme.records import InboxWrite

ENTRY_BITS = 64
ENTRIES_PER_PAGE = BLOCK_BYTES * 8 // ENTRY_BITS
ENTRY_SHIFT = (ENTRY_BITS // 8).bit_length() - 1


def list_beats(config: Config) -> int:
    """Beats of all lists: an entry for each block of a transfer and slot."""
    entries = config.commands * config.transfer_blocks
    a_beat = config.data_width // ENTRY_BITS
    if entries % a_beat:
        raise ValueError("the PRP lists must fill whole beats")
    return entries // a_beat


class ListMemory(wiring.Component):
    """The part of the inbox that holds PRP lists.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inbox
        Beats of the inbox's lists.
    slot
        The command slot whose list is read.
    place
        Which entry of the list.
    entry
        The entry, one cycle later.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "inbox": In(InboxWrite(config, list_beats(config))),
                "slot": In(config.slot_bits),
                "place": In(config.transfer_bits),
                "entry": Out(ENTRY_BITS),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # A beat of several lists may be read for one while another one is written.
        whole_beats = ENTRY_BITS * config.transfer_blocks >= config.data_width
        m.submodules.lists = lists = memory.Memory(
            shape=config.data_width,
            depth=list_beats(config),
            init=[],
            attrs=DISJOINT if whole_beats else None,
        )
        write, read = lists.write_port(granularity=32), lists.read_port()
        lane_bits = (config.data_width // ENTRY_BITS - 1).bit_length()
        list_entry = Signal(config.slot_bits + config.transfer_bits)
        lane = Signal(max(lane_bits, 1))
        m.d.comb += [
            write.addr.eq(self.inbox.beat),
            write.data.eq(self.inbox.data),
            write.en.eq(self.inbox.mask),
            list_entry.eq(Cat(self.place, self.slot)),
            read.addr.eq(list_entry >> lane_bits),
            self.entry.eq(read.data.word_select(lane, ENTRY_BITS)),
        ]
        if lane_bits:
            m.d.sync += lane.eq(list_entry[:lane_bits])
        return m


def list_wait() -> data.StructLayout:
    """Of a command: it ``waits`` for its list. If it is ``cancelled``, it is to be aborted once the
    list has come."""
    return data.StructLayout({"waits": 1, "cancelled": 1})


class ListWaits(wiring.Component):
    """The `list_wait` of each command slot.

    Without `Config.abort_commands` nothing is kept, and ``now`` is always 0.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slot
        The command slot at hand.
    now
        Its `list_wait`, a cycle after ``slot``.
    changes
        A pulse: it becomes ``following``.
    following
        What it becomes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "slot": In(config.slot_bits),
                "now": Out(list_wait()),
                "changes": In(1),
                "following": In(list_wait()),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        if self._config.abort_commands:
            m.submodules.waits = waits = Table(list_wait(), self._config.commands)
            m.d.comb += [
                waits.reads[0].address.eq(self.slot),
                self.now.eq(waits.reads[0].data),
                waits.write.address.eq(self.slot),
                waits.write.data.eq(self.following),
                waits.write.enable.eq(self.changes),
            ]
        return m


class Measure(wiring.Component):
    """How many pages a command spans, and how its PRP entries are aligned, a cycle later.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    command
        The command.
    prp1
        Its PRP1.
    prp2
        Its PRP2.
    more
        Pages after the first. They are entries of the list when there is more than one.
    here
        Entries from PRP2 to the end of its page.
    crosses
        The list has more entries than that.
    unaligned_first
        PRP1 cannot be.
    unaligned_second
        PRP2 cannot be a page.
    unaligned_list
        PRP2 cannot be a list.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "command": In(command(config)),
                "prp1": In(64),
                "prp2": In(64),
                "more": Out(bits_for_count(config.transfer_blocks + 2)),
                "here": Out(range(ENTRIES_PER_PAGE + 1)),
                "crosses": Out(1),
                "unaligned_first": Out(1),
                "unaligned_second": Out(1),
                "unaligned_list": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        within = self.prp1[:PAGE_SHIFT]
        more = self.command.blocks + (within != 0)
        if self._config.sector_emulation:
            # Begun sectors of the first page, and those of its first and last blocks not meant.
            begun = within[SECTOR_SHIFT:] + within[:SECTOR_SHIFT].any()
            skipped = self.command.head + self.command.tail
            last = Signal(6)
            m.d.comb += last.eq(begun + 15 - skipped)
            more = self.command.blocks + (last >> PAGE_SHIFT - SECTOR_SHIFT) - 1
        here = ENTRIES_PER_PAGE - self.prp2[ENTRY_SHIFT:PAGE_SHIFT]
        m.d.sync += [
            self.more.eq(more),
            self.here.eq(here),
            self.crosses.eq(more > here),
            self.unaligned_first.eq(self.prp1[:2].any()),
            self.unaligned_second.eq(self.prp2[:PAGE_SHIFT].any()),
            self.unaligned_list.eq(self.prp2[:ENTRY_SHIFT].any()),
        ]
        return m
