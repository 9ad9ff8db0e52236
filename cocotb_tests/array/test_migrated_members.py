"""Members migrate: how that begins and ends, and what is seen of the member meanwhile."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.array.tables_bench import (
    CONFIGS,
    Bench,
    run_tables,
    this_config,
)
from cocotb_tests.streams import cycles_pass, sample, start, unpack
from hdl.flow.geometry import Level
from hdl.flow.manage import MIGRATION_END_SHIFT, ManageOpcode, ManageStatus, MigrationEnd
from hdl.flow.table_read import migration


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def migrates_members(dut):
    """A migration ends as its drives are, and nobody sees the member at both of them or at none.

    Before they change places it settles, and from then on until it is gone.
    """
    config = this_config()
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    array = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.RAID5.value, "drives": 0b0111}
    begin = {"opcode": ManageOpcode.MIGRATE, "array": 0, "position": 1}
    assert await bench.change(ManageOpcode.END_MIGRATION, array=0) == ManageStatus.NO_ENTRY
    for failing, complete, end in (
        ((), 0, MigrationEnd.RELEASED),
        ((), 1, MigrationEnd.JOINED),
        ((1,), 0, MigrationEnd.STALE),
        ((1,), 1, MigrationEnd.JOINED),
        ((3,), 0, MigrationEnd.RELEASED),
        ((3,), 1, MigrationEnd.RELEASED),
        ((1, 3), 1, MigrationEnd.RELEASED),
    ):
        for port in range(4):
            bench.plug(port, 100_000)
        assert await bench.change(**array) == ManageStatus.DONE
        assert await bench.change(ManageOpcode.END_MIGRATION, array=0) == ManageStatus.NO_ENTRY
        assert await bench.change(**begin, port=2, spare=0) == ManageStatus.DRIVE_UNAVAILABLE
        assert await bench.change(**begin, port=3, spare=complete) == ManageStatus.DONE
        await bench.compare()
        for port in failing:
            bench.plug(port, None)
        await RisingEdge(dut.clk)
        bench.model.ends.clear()
        seen = set()

        async def watch(seen=seen) -> None:
            dut.member_read__0__address.value = 1
            dut.migration_read__0__address.value = 0
            shape = migration(config)
            while True:
                await RisingEdge(dut.clk)
                await FallingEdge(dut.clk)
                entry = unpack(shape, sample(dut.migration_read__0__data))
                seen.add((sample(dut.member_read__0__data), entry.valid, entry.settles))

        watching = cocotb.start_soon(watch())
        answered = await bench.change(ManageOpcode.END_MIGRATION, array=0, complete=complete)
        await cycles_pass(dut.clk, 3)
        watching.cancel()
        assert answered == ManageStatus.DONE and bench.model.ends == {end}
        member = 1 if end == MigrationEnd.RELEASED else 3
        # While rows of before end, both drives are written, whichever is the member.
        drains = {(3, 1, 1)} if end == MigrationEnd.JOINED and 1 not in failing else set()
        settles = {(1, 1, 1)} if complete else set()
        assert seen == {(1, 1, 0), (member, 0, 0), *settles, *drains}
        await bench.compare()
        assert await bench.change(ManageOpcode.DELETE_ARRAY, array=0) == ManageStatus.DONE


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def settles_before_it_flushes(dut):
    """Who is inside as the migration settles may still write without FUA. The new drive is flushed
    when they have ended. If the migration begins anew, it settles no longer."""
    config = this_config()
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
    array = {"level": Level.RAID5.value, "drives": 0b0111}
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    begin = {"array": 0, "position": 1, "port": 3, "spare": 1}
    assert await bench.change(ManageOpcode.MIGRATE, **begin) == ManageStatus.DONE

    async def settles() -> bool:
        (entry,) = await bench.look("migration_read", migration(config), 0, 1)
        assert entry.valid and entry.spare and entry.port == 3
        return bool(entry.settles)

    assert not await settles()
    dut.doubts.value = 1
    bench.quiesces.paused = True
    bench.model.quiesce(0)
    bench.model.flushes.append(1 << 3)
    bench.requests.send(opcode=ManageOpcode.END_MIGRATION, array=0, complete=1)
    await cycles_pass(dut.clk, 200)
    assert await settles() and bench.model.flushes, "it is flushed at once"
    bench.quiesces.paused = False
    answer = await bench.answer()
    assert answer.status == ManageStatus.DONE
    assert answer.index >> MIGRATION_END_SHIFT == MigrationEnd.AGAIN.value
    assert not await settles() and not bench.model.flushes
    dut.doubts.value = 0
    assert await bench.change(ManageOpcode.END_MIGRATION, array=0, complete=1) == ManageStatus.DONE


@pytest.mark.parametrize("config", [name for name in CONFIGS if CONFIGS[name].background])
def test_migrated_members(config):
    run_tables(config, module=__name__)
