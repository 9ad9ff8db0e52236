"""Golden layouts against arrays that Linux md has written, byte for byte."""

import os
import random
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import LAYOUTS, STRIPES, array, contents, differences, needs_linux
from sim import isal
from sim.golden.image import members
from sim.golden.layout import DDF, Layout, rotations
from sim.md import machine
from sim.md.arrays import BLOCK, write_arrays

SEED = int(os.environ.get("SEED") or "1")


class OrderedWeights(Layout):
    """Planted bug: Q weighs blocks in the order of md's own layouts where DDF counts places."""

    def exponents(self, row: int) -> list[int]:
        return list(range(self.data))


@pytest.mark.parametrize("level", ["RAID5", "RAID6", "RAIDTP"])
def test_rows_are_isal_s(level):
    """P, Q and R of whole images, in every rotation, by ISA-L's Vandermonde matrix."""
    generator = random.Random(f"{SEED}/{level}")
    for rotation in rotations(level):
        layout = Layout(level, 7, 1, rotation=rotation)
        rows = layout.width + STRIPES
        areas = members(
            layout, rows, [generator.randbytes(BLOCK) for _ in range(layout.blocks(rows))]
        )
        matrix = isal.rs_matrix(layout.parities, layout.width)
        for row in range(rows):
            held = [area[row * BLOCK : (row + 1) * BLOCK] for area in areas]
            roles, exponents = layout.roles(0, row), layout.exponents(row)
            weighed = [bytes(BLOCK)] * layout.width
            for position, exponent in zip(roles[: layout.data], exponents, strict=True):
                weighed[exponent] = held[position]
            parity = [held[place] for place in layout.parity_places(row)]
            assert isal.encode(matrix, weighed) == parity, f"{layout} row {row}"


@pytest.mark.slow
@needs_linux
def test_md_writes_what_the_layouts_say(tmp_path: Path):
    """Every level and rotation; and wrong weights of Q are told apart."""
    print(f"SEED={SEED}")
    generator = random.Random(f"{SEED}/md")
    arrays = [array(generator, number, layout) for number, layout in enumerate(LAYOUTS)]
    images = write_arrays(tmp_path, arrays)
    for one in arrays:
        wanted = members(one.layout, one.rows, contents(one))
        wrong = differences(one, images[one.name], wanted)
        assert not wrong, f"{one.layout}: {len(wrong)} blocks differ, first {wrong[:4]}"
        if one.layout.rotation in DDF:
            bug = members(OrderedWeights(**vars(one.layout)), one.rows, contents(one))
            assert differences(one, images[one.name], bug)


@pytest.mark.slow
@needs_linux
def test_the_shim_changes_nothing(tmp_path: Path):
    """With `xstate.c` preloaded, which only some processors need, md does the same."""
    one = array(random.Random(f"{SEED}/shim"), 0, Layout("RAID6", 4, 1))
    images = write_arrays(tmp_path, [one], shim=True)
    assert (tmp_path / "xstate.so").exists()
    assert images[one.name] == members(one.layout, one.rows, contents(one))


@pytest.mark.slow
@needs_linux
def test_a_job_that_fails_says_why(tmp_path: Path):
    """What mdadm says ends up in the error."""
    job = machine.Job(
        name="bad",
        arrays=[["--create", "/dev/md0", "--run", "--level=9", "--raid-devices=1", "/dev/ubda"]],
        device="/dev/md0",
        data=[],
        bytes=BLOCK,
        images=["bad.0.img"],
    )
    with pytest.raises(machine.GuestError, match=r"invalid raid level: 9"):
        machine.run(tmp_path, [job])


def test_missing_packages_are_named(monkeypatch, tmp_path):
    """One line says what to install."""
    monkeypatch.setattr(machine, "PROGRAM", "linux.absent")
    assert machine.missing().startswith("install them with: apt-get install user-mode-linux")
    with pytest.raises(machine.MissingLinuxError, match="user-mode-linux"):
        machine.run(tmp_path, [])
