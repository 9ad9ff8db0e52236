"""Builds the 4 KiB pages that Identify, Get Log Page and LIST return."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.interface import (
    WIDTH_BITS,
    TableRead,
    geometry_read,
    member_read,
    port_read,
    volume_read,
)
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config, bits_for_count
from hdl.memory.interface import write_port
from hdl.nvme.identify import IMAGE_WORDS, PAGE_WORDS, Identity, images
from hdl.nvme.records import PageKind, assign, page_request
from hdl.nvme.usage import usage

IMAGES = 6
"""Page kinds with an image in ROM."""

ENTRY_SHIFT = 3
"""Entries of the lists of volumes and drives: 8 words."""

ARRAY_SHIFT = 6
"""Entries of the list of arrays: 64 words, members first."""

NSID_BYTES = 16
"""Bits of a namespace number inside an EUI-64 or NGUID."""


def capacity_read(config: Config) -> TableRead:
    """Reads the capacity of the drive at a port, in blocks."""
    return TableRead(config.port_bits, BLOCK_NUMBER_BITS)


def swapped(number):
    """A 16-bit namespace number as the last two, big-endian, bytes of a word."""
    return Cat(Const(0, NSID_BYTES), number[8:16], number[:8])


class PageGenerator(wiring.Component):
    """Writes a page, word by word, from its image in ROM and from the tables.

    Parameters
    ----------
    config
        Sizes.
    identity
        Fixed contents.

    Ports
    -----
    request
        The page to build.
    response
        1: the page is in its line. 0: DESCRIPTORS of a volume that does not exist, nothing written.
    line_write
        Beats of the line.
    geometry_read, member_read, volume_read, port_read, drive_capacity_read
        Tables.
    drive_present, drive_failed
        A bit per drive port.
    usage
        Counters of the SMART log.

    One page at a time: 64 cycles, 2 for each word that has contents, and one for each beat; at
    256 bits 720 cycles for Identify Controller. Back-pressure on ``line_write`` holds it.
    """

    def __init__(self, *, config: Config, identity: Identity):
        self._config = config
        self._identity = identity
        super().__init__(
            {
                "request": In(stream.Signature(page_request(config))),
                "response": Out(stream.Signature(1)),
                "line_write": Out(write_port(config)),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "volume_read": Out(volume_read(config)),
                "port_read": Out(port_read(config)),
                "drive_capacity_read": Out(capacity_read(config)),
                "drive_present": In(config.ports),
                "drive_failed": In(MAX_DRIVES),
                "usage": In(usage()),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.rom = rom = memory.Memory(
            shape=32, depth=IMAGES * IMAGE_WORDS, init=images(config, self._identity)
        )
        image = rom.read_port()

        page = Signal(page_request(config))
        # `index` counts what is looked at, `word` what has been written.
        index = Signal(range(PAGE_WORDS))
        word = Signal(range(PAGE_WORDS + 1))
        beat = Signal(config.data_width)
        port = Signal(config.port_bits)
        degraded = Signal()
        missing = Signal(WIDTH_BITS)
        value = Signal(32)
        emits = Signal(init=1)

        # Entry of a list; ``exists`` once false stays so, and only zeros follow.
        start = page.nsid[:8]
        number = Signal(range(PAGE_WORDS + (1 << 8)))
        exists = Signal()
        in_arrays = page.kind == PageKind.ARRAYS
        member = index[: bits_for_count(MAX_DRIVES)]
        with m.Switch(page.kind):
            with m.Case(PageKind.ARRAYS):
                m.d.comb += [
                    number.eq(start + (index >> ARRAY_SHIFT)),
                    exists.eq(number < config.arrays),
                ]
            with m.Case(PageKind.VOLUMES):
                m.d.comb += [
                    number.eq(start + (index >> ENTRY_SHIFT)),
                    exists.eq(number < config.volumes),
                ]
            with m.Case(PageKind.DRIVES):
                m.d.comb += [
                    number.eq(start + (index >> ENTRY_SHIFT)),
                    exists.eq(number < config.ports),
                ]
            with m.Case(PageKind.ACTIVE_NAMESPACES):
                m.d.comb += [number.eq(index), exists.eq(index < config.volumes)]
            with m.Default():
                m.d.comb += [number.eq(page.nsid - 1), exists.eq(index < IMAGE_WORDS)]
        scanning = Signal()
        m.d.comb += [
            image.addr.eq(Cat(index[: bits_for_count(IMAGE_WORDS)], page.kind)),
            self.geometry_read.address.eq(number),
            self.volume_read.address.eq(number),
            self.member_read.address.position.eq(member),
            self.member_read.address.array.eq(number),
            self.port_read.address.eq(Mux(scanning, port, number)),
            self.drive_capacity_read.address.eq(number),
        ]

        # Words of the lists.
        shape, volume = self.geometry_read.data, self.volume_read.data
        state, capacity = self.port_read.data, self.drive_capacity_read.data
        array_members = Signal(2 * WIDTH_BITS)
        member_port = self.member_read.data
        member_failed = self.drive_failed.bit_select(member_port, 1)
        is_member = Signal()
        m.d.comb += [
            array_members.eq(shape.width * shape.spans),
            is_member.eq(in_arrays & exists & shape.valid & ~index[5] & (member < array_members)),
        ]
        nsid = Signal(32)
        m.d.comb += nsid.eq(number + 1)

        def words(which: int, values: dict):
            with m.Switch(index[:which]):
                for place, content in values.items():
                    with m.Case(place):
                        m.d.comb += value.eq(content)

        def halves(place: int, number_of_blocks) -> dict:
            return {place: number_of_blocks[:32], place + 1: number_of_blocks[32:]}

        def padded(*parts):
            """Fields of given widths, low bits first."""
            return Cat(*(Cat(part, Const(0, width - len(part))) for part, width in parts))

        with m.Switch(page.kind):
            with m.Case(PageKind.NAMESPACE):
                with m.If(volume.valid & exists):
                    m.d.comb += value.eq(image.data)
                    words(
                        len(index),
                        {
                            **halves(0, volume.blocks),
                            **halves(2, volume.blocks),
                            **halves(4, volume.blocks),
                            29: image.data | swapped(nsid),
                            31: image.data | swapped(nsid),
                        },
                    )
            with m.Case(PageKind.DESCRIPTORS):
                with m.If(exists):
                    m.d.comb += value.eq(image.data)
                words(
                    len(index),
                    {2: image.data | swapped(nsid), 7: image.data | swapped(nsid)},
                )
            with m.Case(PageKind.SMART):
                counters = self.usage
                with m.If(exists):
                    m.d.comb += value.eq(image.data)
                words(
                    len(index),
                    {
                        0: image.data | Cat(Const(0, 2), degraded),
                        **halves(8, counters.units_read),
                        **halves(12, counters.units_written),
                        **halves(16, counters.reads),
                        **halves(20, counters.writes),
                    },
                )
            with m.Case(PageKind.CONTROLLER, PageKind.FIRMWARE_SLOT, PageKind.ERROR):
                with m.If(exists):
                    m.d.comb += value.eq(image.data)
            with m.Case(PageKind.ACTIVE_NAMESPACES):
                m.d.comb += [
                    value.eq(Mux(exists, nsid, 0)),
                    emits.eq(~exists | (volume.valid & (nsid > page.nsid))),
                ]
            with m.Case(PageKind.ARRAYS):
                with m.If(is_member):
                    present = self.drive_present.bit_select(member_port, 1)
                    m.d.comb += value.eq(
                        Cat(
                            padded((member_port, 8)),
                            member_failed,
                            present,
                            Const(0, 21),
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
                                (Cat(shape.rotate, missing != 0), 8),
                                (missing, 8),
                                (number[:8], 8),
                            ),
                            33: padded(
                                (shape.width, 8),
                                (shape.data, 8),
                                (shape.parities, 8),
                                (shape.copies, 8),
                            ),
                            34: padded((shape.spans, 8), (shape.strip_shift, 8)),
                            **halves(36, shape.rows),
                            **halves(38, shape.blocks),
                        },
                    )
            with m.Case(PageKind.VOLUMES):
                with m.If(exists & volume.valid):
                    words(
                        ENTRY_SHIFT,
                        {
                            0: padded((volume.valid, 8), (volume.array, 8)),
                            1: nsid,
                            **halves(2, volume.start),
                            **halves(4, volume.blocks),
                        },
                    )
            with m.Case(PageKind.DRIVES):
                with m.If(exists):
                    present = self.drive_present.bit_select(number[: config.port_bits], 1)
                    failed = self.drive_failed.bit_select(number[: config.port_bits], 1)
                    words(
                        ENTRY_SHIFT,
                        {
                            0: padded((Cat(present, failed, state.used), 8), (state.array, 8)),
                            1: number,
                            **halves(2, capacity),
                        },
                    )

        with m.FSM(name="page") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                m.d.sync += [
                    page.eq(self.request.payload),
                    index.eq(0),
                    word.eq(0),
                    port.eq(0),
                    degraded.eq(0),
                    missing.eq(0),
                ]
                with m.If(self.request.valid):
                    m.next = "SCAN"

            # Is a drive of any array failed?
            with m.State("SCAN"):
                m.d.comb += scanning.eq(1)
                m.next = "COUNT"

            with m.State("COUNT"):
                m.d.comb += scanning.eq(1)
                m.d.sync += [
                    port.eq(port + 1),
                    degraded.eq(degraded | (state.used & self.drive_failed.bit_select(port, 1))),
                ]
                m.next = "SCAN"
                with m.If(port == MAX_DRIVES - 1):
                    m.next = "LOOK"

            with m.State("LOOK"):
                m.next = "PRESENT"
                with m.If((page.kind == PageKind.DESCRIPTORS) & ~volume.valid):
                    m.next = "REFUSE"

            with m.State("PRESENT"):
                m.next = "COPY"

            with m.State("COPY"):
                m.d.sync += index.eq(index + 1)
                with m.If(is_member):
                    m.d.sync += missing.eq(missing + member_failed)
                with m.If(in_arrays & (index[:ARRAY_SHIFT] == (1 << ARRAY_SHIFT) - 1)):
                    m.d.sync += missing.eq(0)
                m.next = "PRESENT"
                with m.If(emits):
                    m.d.sync += [beat.eq(Cat(beat, value)[32:]), word.eq(word + 1)]
                    with m.If(word[: bits_for_count(config.beat_dwords)] == config.beat_dwords - 1):
                        m.next = "WRITE"

            with m.State("WRITE"):
                m.d.comb += self.line_write.valid.eq(1)
                with m.If(self.line_write.ready):
                    m.next = "PRESENT"
                    with m.If(word == PAGE_WORDS):
                        m.next = "REPORT"
                    with m.Elif(~exists):
                        # Nothing follows: whole beats of zeros.
                        m.d.sync += [beat.eq(0), word.eq(word + config.beat_dwords)]
                        m.next = "WRITE"

            with m.State("REPORT"):
                m.d.comb += [self.response.valid.eq(1), self.response.payload.eq(1)]
                with m.If(self.response.ready):
                    m.next = "TAKE"

            with m.State("REFUSE"):
                m.d.comb += self.response.valid.eq(1)
                with m.If(self.response.ready):
                    m.next = "TAKE"

            beat_shift = bits_for_count(config.beat_dwords)
            m.d.comb += assign(
                self.line_write.payload,
                address=Cat(((word - 1) >> beat_shift)[: bits_for_count(config.beats)], page.line),
                data=beat,
                mask=~0,
            )
            waits = (
                (fsm.ongoing("TAKE") & ~self.request.valid)
                | (fsm.ongoing("WRITE") & ~self.line_write.ready)
                | (self.response.valid & ~self.response.ready)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
