"""The whole controller against Linux md: the same writes leave the same bytes on the drives."""

import os
import random
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import LAYOUTS, array, differences, needs_linux
from cocotb_tests.native.native_card import PORTS, Card
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.layouts import rotation_of
from sim.golden.layout import Layout
from sim.md.arrays import BLOCK, Written, write_arrays
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import raid

SEED = int(os.environ.get("SEED") or "1")
FITTING = [layout for layout in LAYOUTS if layout.drives <= PORTS]
LONGEST = 32


def stored_by_card(one: Written) -> list[bytes]:
    """The data areas of the drives after the controller has done the writes of an array."""
    layout = one.layout
    blank = Ideal(capacity=DATA_OFFSET_BLOCKS + one.rows, latency_ps=5 * MICROSECOND)
    with Card([blank] * layout.drives, seed=SEED) as card:
        nvme = card.nvme

        async def main() -> None:
            number = await raid.create_array(
                nvme,
                Level[layout.level],
                range(layout.drives),
                strip_kib=layout.strip_blocks * BLOCK // 1024,
                copies=layout.copies if layout.level == "RAID10" else 0,
                spans=layout.spans,
                rotation=rotation_of(layout),
            )
            (found,) = await raid.arrays(nvme)
            assert found.rotation == rotation_of(layout)
            namespace = await raid.create_volume(nvme, number)
            assert (await nvme.namespace(namespace)).blocks == layout.blocks(one.rows)
            address = card.buffer(LONGEST)
            for write in one.writes:
                for offset in range(0, len(write.data), LONGEST * BLOCK):
                    piece = write.data[offset : offset + LONGEST * BLOCK]
                    card.card.transport.memory.write(address, piece)
                    first = write.block + offset // BLOCK
                    await nvme.write(namespace, first, len(piece) // BLOCK, address)
            await nvme.flush(namespace)

        card.run(main())
        card.finish()
        return [
            b"".join(card.stored(port, row) for row in range(one.rows))
            for port in range(layout.drives)
        ]


@pytest.mark.slow
@needs_linux
def test_controller_writes_what_md_writes(tmp_path: Path):
    """Every level and rotation on up to 8 drives, parity included; another rotation differs."""
    print(f"SEED={SEED}")
    generator = random.Random(f"{SEED}/md card")
    arrays = [array(generator, number, layout) for number, layout in enumerate(FITTING)]
    images = write_arrays(tmp_path, arrays)
    for one in arrays:
        wrong = differences(one, stored_by_card(one), images[one.name])
        assert not wrong, f"{one.layout}: {len(wrong)} blocks differ, first {wrong[:4]}"
    one = arrays[0]
    turned = Layout("RAID5", one.layout.drives, 1, rotation="right-asymmetric")
    other = Written(name="other", layout=turned, rows=one.rows, writes=one.writes)
    assert differences(one, stored_by_card(other), images[one.name])
