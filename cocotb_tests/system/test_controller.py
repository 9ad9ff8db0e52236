"""The whole controller: host driver, cocotbext-pcie, drive models and golden volumes."""

import os
from functools import partial

import cocotb
import pytest

from cocotb_tests.drive.drive_model import IDEAL
from cocotb_tests.runner import SimulationError
from cocotb_tests.system.controller_bench import CONFIG, LIMIT, Bench, run_controller
from cocotb_tests.system.controller_situations import ALL_PORTS, PAUSES, busy_host, refusal, setting
from hdl.config import BLOCK_BYTES
from hdl.core import Core
from hdl.flow.geometry import Level
from hdl.flow.parity_pass import StepKind
from hdl.stripe.rows.sequencer import Sequencer
from sim.card.volume_model import DataError, VolumeModel
from sim.golden import nvme
from sw.driver import raid

LESS_OFTEN = ("RAID0", "RAID1", "RAID10", "RAID50", "JBOD")
"""Levels whose random accesses are only in the long suite; the throughput tier has them all."""


@cocotb.test(**LIMIT)
async def brings_up_and_manages(dut):
    bench = await Bench(dut, timing=IDEAL, pauses=PAUSES).start()
    identity = bench.nvme.identity
    assert identity is not None
    assert identity.max_transfer_pages == CONFIG.transfer_blocks
    assert identity.namespaces == CONFIG.volumes
    assert len(bench.nvme.queues) == CONFIG.queue_pairs
    drives = await raid.drives(bench.nvme)
    assert [drive.port for drive in drives] == list(ALL_PORTS)
    assert all(drive.present and not drive.failed and drive.array is None for drive in drives)
    assert {drive.blocks for drive in drives} == {bench.drives[0].capacity}
    assert await raid.arrays(bench.nvme) == [] == await raid.volumes(bench.nvme)

    create = partial(raid.create_array, bench.nvme, assume_consistent=True)
    volume = partial(raid.create_volume, bench.nvme)
    assert await refusal(create(Level.RAID5, (0, 1))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.RAID6, (0, 1, 2))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.JBOD, (0, 1))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.RAID0, (0, 7))) == nvme.DRIVE_UNAVAILABLE
    raid6 = await create(Level.RAID6, (0, 1, 2, 3), strip_kib=8)
    mirror = await create(Level.RAID1, (4, 5), strip_kib=4)
    assert await refusal(create(Level.RAID1, (3, 4))) == nvme.DRIVE_UNAVAILABLE
    assert await refusal(volume(7)) == nvme.NO_ENTRY
    assert await refusal(volume(raid6, 0, 101)) == nvme.NO_SPACE
    first = await volume(raid6, 0, 40)
    second = await volume(raid6, 60)
    assert await refusal(volume(raid6, 39, 2)) == nvme.NO_SPACE
    third = await volume(mirror)

    found = await raid.arrays(bench.nvme)
    assert [(array.number, array.level, array.blocks) for array in found] == [
        (raid6, Level.RAID6, 100),
        (mirror, Level.RAID1, 50),
    ]
    assert [member.port for member in found[0].members] == [0, 1, 2, 3]
    assert not any(array.degraded or array.missing for array in found)
    listed = await raid.volumes(bench.nvme)
    assert [(v.namespace, v.array, v.start, v.blocks) for v in listed] == [
        (first, raid6, 0, 40),
        (second, raid6, 60, 40),
        (third, mirror, 0, 50),
    ]
    active = await bench.nvme.identify(2)
    numbers = [int.from_bytes(active[4 * n : 4 * n + 4], "little") for n in range(4)]
    assert numbers == [first, second, third, 0]

    assert await refusal(raid.delete_array(bench.nvme, mirror)) == nvme.IN_USE
    await raid.delete_volume(bench.nvme, third)
    assert await refusal(raid.delete_volume(bench.nvme, third)) == nvme.NO_ENTRY
    await raid.delete_array(bench.nvme, mirror)
    assert await refusal(raid.delete_array(bench.nvme, mirror)) == nvme.NO_ENTRY
    again = await bench.create(Level.RAID0, (4, 5))
    await bench.load(again, 8)
    await bench.finish(again)


@cocotb.test(**LIMIT)
async def random_accesses(dut):
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    volume = await bench.create(**setting(os.environ["ARRAY"]))
    await bench.load(volume, int(os.environ["COMMANDS"]))
    await bench.nvme.flush(volume.namespace)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def as_many_as_it_holds(dut):
    """Both queues full of short commands to two volumes, on fast and slow drives."""
    bench = await Bench(dut).start()
    busy_host(bench)
    for port in (1, 4):
        bench.drives[port].timing = IDEAL
    volumes = [
        await bench.create(Level.RAID5, (0, 1, 2), strip_blocks=2),
        await bench.create(Level.RAID10, (3, 4, 5)),
    ]
    for share in (0.9, 0.1):
        loads = [
            cocotb.start_soon(bench.load(volume, 120, workers=60, longest=2, writes=share))
            for volume in volumes
        ]
        for load in loads:
            await load
    await bench.finish(*volumes)


def run(testcase: str, **parameters) -> None:
    run_controller(testcase, module=__name__, **parameters)


def test_bring_up_and_management():
    run("brings_up_and_manages")


@pytest.mark.parametrize(
    ("array", "commands"),
    [
        pytest.param("RAID6", 50, marks=pytest.mark.slow),
        pytest.param("RAID5", 60, marks=pytest.mark.slow),
        pytest.param("RAID1E", 40, marks=pytest.mark.slow),
        *(pytest.param(level, 50, marks=pytest.mark.slow) for level in LESS_OFTEN),
    ],
)
def test_random_accesses(array, commands):
    run("random_accesses", array=array, commands=commands)


@pytest.mark.slow
def test_full_queues():
    run("as_many_as_it_holds")


class MisplacesReads(Core):
    """A planted bug: every second block of a read goes where the one before it went."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.front_end.blocks.deliver.payload.offset[0].eq(0)
        return m


class ConfusesParities(Sequencer):
    """A planted bug: every parity is P."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.step.payload.kind == StepKind.OUTPUT):
            m.d.comb += self.step.payload.role.eq(0)
        return m


@pytest.mark.parametrize(
    ("place", "mutant", "testcase", "message"),
    [
        ("hdl.controller.Core", MisplacesReads, "random_accesses", "read, is wrong"),
        ("hdl.core.Sequencer", ConfusesParities, "random_accesses", "parity is wrong"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_caught(monkeypatch, place, mutant, testcase, message):
    monkeypatch.setattr(place, mutant)
    with pytest.raises(SimulationError, match=message):
        run(testcase, mutant=mutant, array="RAID6", commands=20)


def test_golden_volume_allows_what_can_be():
    """Writes that overlap in time may end in any order, one that began later wins."""
    old, new, newer = (bytes([value]) * BLOCK_BYTES for value in range(3))
    model = VolumeModel([old] * 3)
    read = model.begin_read(0, 3)
    first = model.begin_write(0, [new, new])
    second = model.begin_write(1, [newer])
    assert model.possible(1) == {old, new, newer}
    model.end_write(second)
    model.end_write(first)
    assert [model.possible(block) for block in range(3)] == [{new}, {new, newer}, {old}]
    model.end_read(read, [new, old, old])
    third = model.begin_write(1, [old])
    model.end_write(third)
    assert model.possible(1) == {old}
    failed = model.begin_write(1, [new])
    model.end_write(failed, done=False)
    assert model.possible(1) == {old, new}
    assert model.idle
    with pytest.raises(DataError, match="block 0, number 0 of 2 read"):
        model.end_read(model.begin_read(0, 2), [old, old])
    with pytest.raises(DataError, match="block 2 in drive 1"):
        model.check(2, newer, "drive 1")
