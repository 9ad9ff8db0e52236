"""What the pages can tell: all that the tables of their fields name as sources."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, BLOCK_NUMBER_BITS, Config
from hdl.flow.array_state import ArrayState
from hdl.flow.drive_standing import drive_standing
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.table_read import port_use, volume
from hdl.nvme.admin.names import NameRead
from hdl.nvme.pages.layout import WORD_BYTES
from hdl.nvme.records import PageKind

PAGE_WORDS = BLOCK_BYTES // WORD_BYTES

NUMBERS = PAGE_WORDS + (1 << 8)
"""Entries are numbered below this: a page of them from any start."""

WARNING_BITS = 5
"""Bits of Critical Warning."""


def drive_state() -> data.StructLayout:
    """A drive is ``present``. It has ``failed``. It is ``stale``: it is being rebuilt, and has not
    failed."""
    return data.StructLayout({"present": 1, "failed": 1, "stale": 1})


def member_facts(config: Config) -> data.StructLayout:
    """What is known of a member of an array, if it ``exists``: its drive port, and its drive."""
    return data.StructLayout({"exists": 1, "port": config.port_bits, "drive": drive_state()})


def array_facts(config: Config) -> data.StructLayout:
    """What is known of an array.

    Fields
    ------
    geometry
        As in the table.
    missing
        How many members have failed, of those in the words before.
    state
        Its state; always OPTIMAL without `Config.background`.
    unsynced
        It is not in sync.
    assumed
        It is only assumed to be in sync.
    """
    return data.StructLayout(
        {
            "geometry": geometry(config),
            "missing": WIDTH_BITS,
            "state": ArrayState,
            "unsynced": 1,
            "assumed": 1,
        }
    )


def volume_facts(config: Config) -> data.StructLayout:
    """What is known of a volume and its namespace.

    Fields
    ------
    range
        Of its array, as in the table.
    active
        The volume exists, and its namespace is attached.
    changed
        The namespace has changed.
    sectors
        Its logical blocks are sectors of 512 bytes; 0 without `Config.sector_emulation`.
    coarse
        With ``sectors``: the physical sectors have 4096 bytes.
    """
    return data.StructLayout(
        {"range": volume(config), "active": 1, "changed": 1, "sectors": 1, "coarse": 1}
    )


def drive_facts(config: Config) -> data.StructLayout:
    """What is known of a drive port and its drive.

    Fields
    ------
    use
        What the port is used for.
    capacity
        Blocks of the drive.
    state
        Of the drive.
    emulated
        The drive emulates sectors of 512 bytes; 0 without `Config.sector_emulation`.
    foreign
        It says that it belongs to an array, which is not there; 0 without `Config.metadata`.
    spare
        It is a hot spare; 0 without `Config.metadata`.
    standing
        Of its superblock; 0 without `Config.metadata`.
    """
    return data.StructLayout(
        {
            "use": port_use(config),
            "capacity": BLOCK_NUMBER_BITS,
            "state": drive_state(),
            "emulated": 1,
            "foreign": 1,
            "spare": 1,
            "standing": drive_standing(),
        }
    )


def space_facts(config: Config) -> data.StructLayout:
    """``total``: blocks of all arrays. ``free``: of these, blocks that no volume has. Both are 0
    without `Config.report_capacity`."""
    bits = BLOCK_NUMBER_BITS + config.array_bits
    return data.StructLayout({"total": bits, "free": bits})


def health_facts() -> data.StructLayout:
    """What the SMART log says of the moment: Critical Warning, and Composite Temperature in
    kelvins."""
    return data.StructLayout({"warning": WARNING_BITS, "temperature": 16})


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
    names
        What names the card, and volume ``number``.
    array
        Array ``number``.
    member
        The member of the array that the word is of.
    volume
        Volume ``number``.
    drive
        Drive port ``number``.
    space
        What the arrays offer.
    health
        Of the moment.
    """

    def __init__(self, config: Config):
        self.config = config
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
                "names": In(NameRead(config)),
                "array": Out(array_facts(config)),
                "member": Out(member_facts(config)),
                "volume": Out(volume_facts(config)),
                "drive": Out(drive_facts(config)),
                "space": Out(space_facts(config)),
                "health": Out(health_facts()),
            }
        )
