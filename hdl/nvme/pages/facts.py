"""What the pages can tell: all that the tables of their fields name as sources."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, BLOCK_NUMBER_BITS, Config
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.table_read import port_use, volume
from hdl.nvme.admin.names import CHUNKS
from hdl.nvme.pages.layout import WORD_BYTES
from hdl.nvme.records import PageKind

PAGE_WORDS = BLOCK_BYTES // WORD_BYTES

NUMBERS = PAGE_WORDS + (1 << 8)
"""Entries are numbered below this: a page of them from any start."""

WARNING_BITS = 5
"""Bits of Critical Warning."""


class Facts(wiring.Signature):
    """What is known of the word that is looked at, seen from the one that knows it.

    Parameters
    ----------
    config
        Sizes.

    Members
    -------
    kind
        The page.
    nsid
        The namespace that is asked about; of the lists of namespaces, the one before the first.
    index
        The word of the page.
    number
        Of the entry of a list, or of the namespace that is asked about, counted from 0.
    exists
        There is such an entry; a page without a list is within its image.
    image
        The word in the ROM.
    log
        The word in the memory of the SMART and error logs (`hdl.nvme.pages.health.Health`).
    report
        The word in the logs of background work (`hdl.flow.report`); 0 without
        `Config.background`.
    chunk
        Answered by the reader: the quarter of the identity that ``digits`` has to be of.
    digits
        The digits of a quarter of the identity, as text (`hdl.nvme.admin.names.Names`).
    name
        Words of the name of volume ``number``, as of `hdl.nvme.admin.names.Names`.
    shape
        Array ``number``.
    is_member
        The word is that of a member of the array.
    member_port
        The drive port of the member.
    member_failed
        Its drive has failed.
    member_present
        Its drive is there.
    member_stale
        Its drive is being rebuilt, and has not failed.
    missing
        How many members of the array have failed, of those in the words before.
    array_state
        State of array ``number``; always OPTIMAL without `Config.background`.
    array_unsynced
        The array is not in sync.
    array_assumed
        The array is only assumed to be in sync.
    volume
        Volume ``number``.
    active
        The volume exists, and its namespace is attached.
    changed
        The namespace of the volume has changed.
    sectors
        The logical blocks of the volume are sectors of 512 bytes; 0 without
        `Config.sector_emulation`.
    coarse
        Of such a volume: the physical sectors have 4096 bytes.
    port
        What drive port ``number`` is used for.
    capacity
        Blocks of the drive.
    drive_present
        The drive is there.
    drive_failed
        The drive has failed.
    drive_stale
        The drive is being rebuilt, and has not failed.
    drive_emulated
        The drive emulates sectors of 512 bytes; 0 without `Config.sector_emulation`.
    total
        Blocks of all arrays; 0 without `Config.report_capacity`.
    free
        Of these, blocks that no volume has.
    warning
        Critical Warning.
    temperature
        Composite Temperature, in kelvins.
    """

    def __init__(self, config: Config):
        self.config = config
        capacity_bits = BLOCK_NUMBER_BITS + config.array_bits
        super().__init__(
            {
                "kind": Out(PageKind),
                "nsid": Out(32),
                "index": Out(range(PAGE_WORDS)),
                "number": Out(range(NUMBERS)),
                "exists": Out(1),
                "image": Out(32),
                "log": Out(32),
                "report": Out(32),
                "chunk": In(range(CHUNKS)),
                "digits": Out(32),
                "name": Out(32).array(4),
                "shape": Out(geometry(config)),
                "is_member": Out(1),
                "member_port": Out(config.port_bits),
                "member_failed": Out(1),
                "member_present": Out(1),
                "member_stale": Out(1),
                "missing": Out(WIDTH_BITS),
                "array_state": Out(ArrayState),
                "array_unsynced": Out(1),
                "array_assumed": Out(1),
                "volume": Out(volume(config)),
                "active": Out(1),
                "changed": Out(1),
                "sectors": Out(1),
                "coarse": Out(1),
                "port": Out(port_use(config)),
                "capacity": Out(BLOCK_NUMBER_BITS),
                "drive_present": Out(1),
                "drive_failed": Out(1),
                "drive_stale": Out(1),
                "drive_emulated": Out(1),
                "total": Out(capacity_bits),
                "free": Out(capacity_bits),
                "warning": Out(WARNING_BITS),
                "temperature": Out(16),
            }
        )
