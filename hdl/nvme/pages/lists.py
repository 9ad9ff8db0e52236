"""The pages of the vendor command LIST, field by field (docs/host-interface.md)."""

from amaranth.hdl import Const, Mux
from amaranth.lib.wiring import PureInterface

from hdl.config import MAX_DRIVES, Config
from hdl.nvme.pages.layout import WORD_BYTES, Layout, bits, field
from hdl.nvme.pages.page import Numbered, Page
from hdl.nvme.records import PageKind


def member(facts: PureInterface) -> Layout:
    """The word of a member of an array."""
    return Layout(
        # name, byte, bytes or: name, byte, bit, bits; then the source
        field("drive port", 0, 1, facts.member.port),
        bits("failed", 1, 0, 1, facts.member.drive.failed),
        bits("present", 1, 1, 1, facts.member.drive.present),
        bits("being rebuilt", 1, 2, 1, facts.member.drive.stale),
        bits("is a member", 3, 7, 1, 1),
        size=WORD_BYTES,
    )


def arrays(config: Config, facts: PureInterface) -> Page:
    """Page 0: arrays, 256 bytes an entry. Members come first, as those that failed are counted."""
    array = facts.array
    shape = array.geometry
    begin = []
    if config.metadata:
        begin = [field("first block of a member that has rows", 160, 4, shape.data_offset)]
    word = Mux(facts.member.exists, member(facts).packed(), Const(0, 32))
    return Page(
        kinds=(PageKind.ARRAYS,),
        numbered=Numbered.FROM_START,
        entries=config.arrays,
        shows=facts.exists & shape.valid,
        layout=Layout(
            # name, byte, bytes or: name, byte, bit, bits; then the source
            field("members, a word each: `member`", 0, 128, (word,) * MAX_DRIVES),
            bits("exists", 128, 0, 4, shape.valid),
            bits("level", 128, 4, 4, shape.level),
            bits("parity rotates", 129, 0, 1, shape.rotate),
            bits("a member is failed", 129, 1, 1, array.missing != 0),
            field("failed members", 130, 1, array.missing),
            field("array", 131, 1, facts.number[:8]),
            field("width of a span", 132, 1, shape.width),
            field("data strips", 133, 1, shape.data),
            field("parities", 134, 1, shape.parities),
            field("copies", 135, 1, shape.copies),
            field("spans", 136, 1, shape.spans),
            field("log2 of the blocks of a strip", 137, 1, shape.strip_shift),
            bits("rotation", 138, 0, 4, shape.rotation),
            bits("state", 140, 0, 2, array.state),
            bits("not in sync", 140, 2, 1, array.unsynced),
            bits("assumed to be in sync", 140, 3, 1, array.assumed),
            field("rows of a span", 144, 8, shape.rows),
            field("blocks that the array offers", 152, 8, shape.blocks),
            *begin,
            size=256,
        ),
    )


def volumes(config: Config, facts: PureInterface) -> Page:
    """Page 1: volumes, 32 bytes an entry."""
    volume = facts.volume.range
    return Page(
        kinds=(PageKind.VOLUMES,),
        numbered=Numbered.FROM_START,
        entries=config.volumes,
        shows=facts.exists & volume.valid,
        layout=Layout(
            # name, byte, bytes or: name, byte, bit, bits; then the source
            field("exists", 0, 1, volume.valid),
            field("array", 1, 1, volume.array),
            bits("sectors of 512 bytes", 2, 0, 1, facts.volume.sectors),
            bits("their physical sectors have 4096 bytes", 2, 1, 1, facts.volume.coarse),
            field("NSID", 4, 4, facts.number + 1),
            field("first block in the array", 8, 8, volume.start),
            field("blocks", 16, 8, volume.blocks),
            size=32,
        ),
    )


def drives(config: Config, facts: PureInterface) -> Page:
    """Page 2: drives, 32 bytes an entry, a port each."""
    drive = facts.drive
    standing = []
    if config.metadata:
        standing = [
            bits("its superblock", 2, 0, 4, drive.standing.finding),
            bits("why its array is not there", 2, 4, 4, drive.standing.hindrance),
        ]
    return Page(
        kinds=(PageKind.DRIVES,),
        numbered=Numbered.FROM_START,
        entries=config.ports,
        shows=facts.exists,
        layout=Layout(
            # name, byte, bytes or: name, byte, bit, bits; then the source
            bits("present", 0, 0, 1, drive.state.present),
            bits("failed", 0, 1, 1, drive.state.failed),
            bits("belongs to an array", 0, 2, 1, drive.use.used),
            bits("being rebuilt", 0, 3, 1, drive.state.stale),
            bits("emulates sectors of 512 bytes", 0, 4, 1, drive.emulated),
            bits("belongs to an array that is not there", 0, 5, 1, drive.foreign),
            bits("is a hot spare", 0, 6, 1, drive.spare),
            field("array", 1, 1, drive.use.array),
            *standing,
            field("port", 4, 4, facts.number),
            field("capacity in blocks", 8, 8, drive.capacity),
            size=32,
        ),
    )


def list_pages(config: Config, facts: PureInterface) -> list[Page]:
    """All pages of LIST."""
    return [arrays(config, facts), volumes(config, facts), drives(config, facts)]
