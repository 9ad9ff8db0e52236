"""What stands in each word of the pages that Identify, Get Log Page and LIST return."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import (
    BLOCK_BYTES,
    BLOCK_NUMBER_BITS,
    MAX_DRIVES,
    SECTOR_BITS,
    SECTORS_PER_BLOCK,
    Config,
    bits_for_count,
)
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.table_read import port_use, volume
from hdl.nvme.admin.names import CHUNKS
from hdl.nvme.commands.formats import formats
from hdl.nvme.pages.health import ENTRY_WORDS, HOT_WORD, STORED_WORDS, WARM_WORD, Counter
from hdl.nvme.pages.identify import PAGE_WORDS
from hdl.nvme.records import PageKind

ENTRY_SHIFT = 3
"""Entries of the lists of volumes and drives: 8 words."""

ARRAY_SHIFT = 6
"""Entries of the list of arrays: 64 words, members first."""

NAME_WORDS = 26, 31
"""First and last word of NGUID and EUI-64 in Identify Namespace."""

TOTAL_WORD, FREE_WORD = 70, 74
"""First words of TNVMCAP and UNVMCAP in Identify Controller."""

BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1

SERIAL_WORDS, SUBSYSTEM_WORDS = (2, 3, 4, 5), (200, 201, 207, 208)
"""Words of the serial number and of the NQN in Identify Controller: digits of the identity."""

OPTIMAL_SIZES, ATOMIC_SIZES = 1 << 4, 1 << 1
"""NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are valid; NAWUN, NAWUPF and NACWU are."""

PHYSICAL_HIGH = (8, 16, 17)
PHYSICAL_LOW = (9, 10, 11, 16, 17, 18)
"""Words of Identify Namespace of which the upper or lower half says how many sectors a physical one
has, less one: NAWUN, NPWA, NPDA; NAWUPF, NABSN, NABSPF, NPWG, NPDG, NOWS."""

WARNING_BITS = 5
"""Bits of Critical Warning."""

NUMBERS = PAGE_WORDS + (1 << 8)
"""Entries are numbered below this: a page of them from any start."""


class PageWords(wiring.Component):
    """The word of a page that is looked at, from its image and the tables' answers.

    Combinational; `PageGenerator` waits until every answer is there.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    kind, nsid
        The page.
    index, number, exists
        What is looked at, its entry of a list, and whether there is one.
    image, log
        Words of the ROM and of the logs.
    shape, member_port, volume, port, capacity
        Answers of the tables: array, member, volume, and drive port of ``number``.
    missing
        Failed members of the array so far.
    total, free
        Capacity of all arrays and what volumes leave of it, in blocks (`Config.report_capacity`).
    report
        Word of the log of background work (`Config.background`).
    chunk, digits, name
        As of `hdl.nvme.admin.names.Names`: ``digits`` of ``chunk``, ``name`` of volume ``number``.
    array_state
        State of array ``number``.
    array_state, array_unsynced, array_assumed
        State of array ``number``; whether it is not in sync, or assumed to be. Without
        `Config.background` that is looked up in ``shape``.
    drive_stale
        As in `PageGenerator`.
    drive_present, drive_failed, warning, temperature, changed, detached, formats, drive_emulated
        As in `PageGenerator`.
    value, emits
        The word, and whether the page has it at all.
    active
        The namespace exists and is attached.
    failed
        A member of the array has failed.
    """

    def __init__(self, *, config: Config):
        self._config = config
        capacity_bits = BLOCK_NUMBER_BITS + config.array_bits
        super().__init__(
            {
                "kind": In(PageKind),
                "nsid": In(32),
                "index": In(range(PAGE_WORDS)),
                "number": In(range(NUMBERS)),
                "exists": In(1),
                "image": In(32),
                "log": In(32),
                "shape": In(geometry(config)),
                "member_port": In(config.port_bits),
                "volume": In(volume(config)),
                "port": In(port_use(config)),
                "capacity": In(BLOCK_NUMBER_BITS),
                "missing": In(WIDTH_BITS),
                "total": In(capacity_bits),
                "free": In(capacity_bits),
                "drive_present": In(config.ports),
                "drive_failed": In(MAX_DRIVES),
                "drive_stale": In(MAX_DRIVES),
                "report": In(32),
                "chunk": Out(range(CHUNKS)),
                "digits": In(32),
                "name": In(32).array(4),
                "array_state": In(ArrayState),
                "array_unsynced": In(1),
                "array_assumed": In(1),
                "warning": In(WARNING_BITS),
                "temperature": In(16),
                "changed": In(config.volumes),
                "detached": In(config.volumes),
                "value": Out(32),
                "emits": Out(1, init=1),
                "active": Out(1),
                "failed": Out(1),
            }
            | (
                {"formats": In(formats(config)), "drive_emulated": In(config.ports)}
                if config.sector_emulation
                else {}
            )
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        index, number, exists, volume = self.index, self.number, self.exists, self.volume
        shape, member_port, state = self.shape, self.member_port, self.port
        member = index[: bits_for_count(MAX_DRIVES)]
        array_members = Signal(2 * WIDTH_BITS)
        member_failed = self.drive_failed.bit_select(member_port, 1)
        is_member = Signal()
        nsid = Signal(32)
        active = self.active
        volume_bit = number[: config.volume_bits]
        m.d.comb += [
            array_members.eq(shape.width * shape.spans),
            is_member.eq(
                (self.kind == PageKind.ARRAYS)
                & exists
                & shape.valid
                & ~index[5]
                & (member < array_members)
            ),
            self.failed.eq(is_member & member_failed),
            nsid.eq(number + 1),
            active.eq(volume.valid & ~self.detached.bit_select(volume_bit, 1)),
        ]

        def words(which: int, values: dict):
            with m.Switch(index[:which]):
                for place, content in values.items():
                    with m.Case(place):
                        m.d.comb += self.value.eq(content)

        def halves(place: int, number_of_blocks) -> dict:
            return {place: number_of_blocks[:32], place + 1: number_of_blocks[32:]}

        def padded(*parts):
            """Fields of given widths, low bits first."""
            return Cat(*(Cat(part, Const(0, width - len(part))) for part, width in parts))

        unsynced, assumed = self.array_unsynced, self.array_assumed
        if not config.background:
            assumed = shape.assumed
            unsynced = ~assumed & ((shape.parities != 0) | (shape.copies > 1))
        sectors, coarse, emulated = Const(0, 1), Const(0, 1), Const(0, 1)
        blocks = volume.blocks
        if config.sector_emulation:
            sectors = self.formats.sectors.bit_select(volume_bit, 1)
            coarse = self.formats.coarse.bit_select(volume_bit, 1)
            emulated = self.drive_emulated.bit_select(number[: config.port_bits], 1)
            blocks = Mux(sectors, volume.blocks << SECTOR_BITS, volume.blocks)

        with m.Switch(self.kind):
            with m.Case(PageKind.NAMESPACE, PageKind.ALLOCATED_NAMESPACE):
                # Of FFFFFFFFh: what all namespaces have in common, which is no size and no name.
                first_name, last_name = NAME_WORDS
                every = self.nsid[31]
                with m.If(every & exists & ((index < first_name) | (index > last_name))):
                    m.d.comb += self.value.eq(self.image)
                shown = active | (self.kind == PageKind.ALLOCATED_NAMESPACE)
                with m.If(volume.valid & shown & exists & ~every):
                    m.d.comb += self.value.eq(self.image)
                    words(
                        len(index),
                        {
                            **halves(0, blocks),
                            **halves(2, blocks),
                            **halves(4, blocks),
                            **halves(12, Cat(Const(0, BLOCK_SHIFT), volume.blocks)),
                            **self._name_from(NAME_WORDS[0]),
                        },
                    )
                    if config.sector_emulation:
                        features = Mux(coarse, OPTIMAL_SIZES | ATOMIC_SIZES, 0)
                        physical = Mux(coarse, SECTORS_PER_BLOCK - 1, 0)
                        with m.If(index == 6):
                            m.d.comb += self.value.eq(
                                self.image | features | Cat(Const(0, 16), sectors)
                            )
                        for places, shift in ((PHYSICAL_LOW, 0), (PHYSICAL_HIGH, 16)):
                            for place in places:
                                with m.If(index == place):
                                    m.d.comb += self.value[shift : shift + 16].eq(physical)
            with m.Case(PageKind.DESCRIPTORS):
                with m.If(exists):
                    m.d.comb += self.value.eq(self.image)
                words(len(index), self._name_from(1))
            with m.Case(PageKind.SMART):
                first, last = 4 * Counter.UNITS_READ.value, 4 * Counter.ERRORS.value + 3
                with m.If((index == WARM_WORD) | (index == HOT_WORD)):
                    m.d.comb += self.value.eq(self.log)
                with m.Elif((index >= first) & (index <= last)):
                    with m.If(~index[1]):
                        m.d.comb += self.value.eq(self.log)
                with m.Elif(exists):
                    m.d.comb += self.value.eq(self.image)
                with m.If(index == 0):
                    m.d.comb += self.value.eq(
                        self.image | Cat(self.warning, Const(0, 8 - WARNING_BITS), self.temperature)
                    )
            with m.Case(PageKind.ERROR):
                with m.If(exists & (index[: bits_for_count(ENTRY_WORDS)] < STORED_WORDS)):
                    m.d.comb += self.value.eq(self.log)
            with m.Case(PageKind.CONTROLLER):
                with m.If(exists):
                    m.d.comb += self.value.eq(self.image)
                if config.report_capacity:
                    total, free = (Cat(Const(0, BLOCK_SHIFT), n) for n in (self.total, self.free))
                    words(len(index), {**halves(TOTAL_WORD, total), **halves(FREE_WORD, free)})
                for places in (SERIAL_WORDS, SUBSYSTEM_WORDS):
                    for chunk, place in enumerate(places):
                        with m.If(index == place):
                            m.d.comb += [self.chunk.eq(chunk), self.value.eq(self.digits)]
            with m.Case(PageKind.FIRMWARE_SLOT):
                with m.If(exists):
                    m.d.comb += self.value.eq(self.image)
            with m.Case(PageKind.CHANGED_NAMESPACES):
                m.d.comb += [
                    self.value.eq(Mux(exists, nsid, 0)),
                    self.emits.eq(
                        ~exists | self.changed.bit_select(volume_bit, 1)
                    ),
                ]
            with m.Case(PageKind.ACTIVE_NAMESPACES):
                m.d.comb += [
                    self.value.eq(Mux(exists, nsid, 0)),
                    self.emits.eq(~exists | (active & (nsid > self.nsid))),
                ]
            with m.Case(PageKind.ALLOCATED_NAMESPACES):
                m.d.comb += [
                    self.value.eq(Mux(exists, nsid, 0)),
                    self.emits.eq(~exists | (volume.valid & (nsid > self.nsid))),
                ]
            with m.Case(PageKind.CONTROLLERS):
                # One identifier, which is 0; with a namespace only if that is attached.
                with m.If(index == 0):
                    m.d.comb += self.value.eq(active | (self.nsid == 0))
            with m.Case(PageKind.ARRAYS):
                with m.If(is_member):
                    present = self.drive_present.bit_select(member_port, 1)
                    m.d.comb += self.value.eq(
                        Cat(
                            padded((member_port, 8)),
                            member_failed,
                            present,
                            self.drive_stale.bit_select(member_port, 1) & ~member_failed,
                            Const(0, 20),
                            Const(1, 1),
                        )
                    )
                with m.If(exists & shape.valid):
                    words(
                        ARRAY_SHIFT,
                        {
                            32: padded(
                                (shape.valid, 4),
                                (Cat(shape.level), 4),
                                (Cat(shape.rotate, self.missing != 0), 8),
                                (self.missing, 8),
                                (number[:8], 8),
                            ),
                            33: padded(
                                (shape.width, 8),
                                (shape.data, 8),
                                (shape.parities, 8),
                                (shape.copies, 8),
                            ),
                            34: padded(
                                (shape.spans, 8),
                                (shape.strip_shift, 8),
                                (Cat(shape.rotation), 8),
                            ),
                            35: Cat(self.array_state, unsynced, assumed),
                            **halves(36, shape.rows),
                            **halves(38, shape.blocks),
                        },
                    )
            with m.Case(PageKind.VOLUMES):
                with m.If(exists & volume.valid):
                    words(
                        ENTRY_SHIFT,
                        {
                            0: padded(
                                (volume.valid, 8), (volume.array, 8), (Cat(sectors, coarse), 8)
                            ),
                            1: nsid,
                            **halves(2, volume.start),
                            **halves(4, volume.blocks),
                        },
                    )
            with m.Case(PageKind.DRIVES):
                with m.If(exists):
                    present = self.drive_present.bit_select(number[: config.port_bits], 1)
                    failed = self.drive_failed.bit_select(number[: config.port_bits], 1)
                    stale = self.drive_stale.bit_select(number[: config.port_bits], 1) & ~failed
                    words(
                        ENTRY_SHIFT,
                        {
                            0: padded(
                                (Cat(present, failed, state.used, stale, emulated), 8),
                                (state.array, 8),
                            ),
                            1: number,
                            **halves(2, self.capacity),
                        },
                    )
            with m.Case(PageKind.ARRAY_STATES, PageKind.DEFECTS, PageKind.LOST_BLOCKS):
                with m.If(exists):
                    m.d.comb += self.value.eq(self.report)
        return m

    def _name_from(self, first: int) -> dict:
        """An NGUID in words from ``first`` on."""
        high, low, count_high, count_low = self.name
        return {
            first: high, first + 1: low, first + 2: self.image | count_high, first + 3: count_low,
        }  # fmt: skip
