"""What the drives of each array say."""

from amaranth.lib import data

from hdl.config import Config
from hdl.kit.table import TableRead
from hdl.metadata.spans import SPAN_BITS
from hdl.metadata.superblock_facts import EVENT_BITS, UUID_BITS


def record() -> data.StructLayout:
    """What the superblocks of an array have in common and the tables do not know: its identity, and
    how often it has changed. Those of spans but the first may have changed more or less often.
    ``made_by_md`` says that no card has made the array. Then superblocks say more that all have in
    common."""
    return data.StructLayout({"set_uuid": UUID_BITS, "events": EVENT_BITS, "made_by_md": 1})


def record_read(config: Config) -> TableRead:
    """Reads the record of an array."""
    return TableRead(config.array_bits, record())


def model_read(config: Config) -> TableRead:
    """Reads the port of a member that superblocks of new ones of its array may be like."""
    return TableRead(config.array_bits, config.port_bits)


def span_read() -> TableRead:
    """Reads how often a span has changed."""
    return TableRead(SPAN_BITS, EVENT_BITS)


def listed(config: Config) -> data.StructLayout:
    """``array`` has the volumes that its drives list. With ``anew`` the lists are written again, so
    that all are alike."""
    return data.StructLayout({"array": config.array_bits, "anew": 1})
