"""What the tests of the array blocks share: tables behind read ports, and random layouts."""

from cocotb_tests.fields import ANY
from cocotb_tests.streams import TableServer, pack
from hdl.config import DATA_OFFSET_BLOCKS, ERA_BITS, Config
from hdl.flow.geometry import Level, geometry
from hdl.flow.operation import Opcode, Owner
from hdl.flow.recovery import ROUNDS
from hdl.flow.table_read import volume
from sim.card.layouts import rotation_fields
from sim.golden.layout import Layout


class Table:
    """Answers table reads from ``entries`` (address to packed data), a cycle later."""

    def __init__(self, dut, name: str):
        self.entries: dict[int, int] = {}
        TableServer(dut, name, lambda address: self.entries.get(address, 0))


def random_recovery(generator, config: Config, *, copies: int) -> dict[str, int]:
    """What may have been tried before of a block with so many copies."""
    bits = {"medium": 1, "ordered": 1, "era": ERA_BITS} if config.background else {}
    return {
        **{name: generator.getrandbits(width) for name, width in bits.items()},
        "again": 1,
        "tried": generator.randint(0, ROUNDS * copies + config.drive_resets + 3),
        "copy": generator.randrange(copies),
    }


FLUSH_IGNORES = {
    "FLUSH:recover.copy": "of a read",
    "FLUSH:recover.ordered": "of a read",
    "FLUSH:recover.era": "of a read",
    "FLUSH:restarts": "of what is dated",
    "FLUSH:line": "of a row",
}
"""Fields without a meaning in a `hdl.flow.operation.operation` that is a FLUSH."""


def flush_operation(
    *, port: int, owner: Owner, index: int = 0, place: int = 0, restarts: int = 0
) -> dict:
    """The FLUSH of a drive, which had restarted so often before, for `check_fields`."""
    recover = {"tried": restarts, "copy": ANY, "ordered": ANY, "era": ANY}
    return {
        "port": port,
        "opcode": Opcode.FLUSH,
        "recover": recover,
        "owner": owner,
        "index": index,
        "place": place,
        "restarts": ANY,
        "line": ANY,
    }


def pack_geometry(config, layout: Layout, rows: int) -> int:
    """The entry of the geometry table for ``layout`` with ``rows`` rows."""
    return pack(
        geometry(config),
        valid=1,
        level=Level[layout.level],
        width=layout.width,
        data=layout.data,
        parities=layout.parities,
        copies=layout.copies,
        spans=layout.spans,
        strip_shift=layout.strip_blocks.bit_length() - 1,
        **rotation_fields(layout),
        rows=rows,
        blocks=layout.blocks(rows),
        **({"data_offset": DATA_OFFSET_BLOCKS} if config.metadata else {}),
    )


def pack_volume(config, array: int, start: int, blocks: int) -> int:
    """The entry of the volume table."""
    return pack(volume(config), valid=1, array=array, start=start, blocks=blocks)
