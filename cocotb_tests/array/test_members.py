"""Members replaced, and taken back: who may be one again, and what is seen of it meanwhile."""

import random

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.array.tables_bench import CONFIGS, Bench, run_tables, this_config
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import sample, start
from hdl.array.tables.identities import Identities
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def replaces_members(dut):
    """A member is never seen as a drive that is neither failed nor stale before its rebuild."""
    bench = Bench(dut, this_config(), random.Random(1))
    await start(dut)
    for port in range(5):
        bench.plug(port, 100_000)
    await bench.change(ManageOpcode.CREATE_ARRAY, level=Level.RAID5.value, drives=0b0111)
    await bench.change(ManageOpcode.CREATE_VOLUME, array=0)
    replace = {"opcode": ManageOpcode.REPLACE, "array": 0, "position": 1}
    assert await bench.change(**replace, port=3) == ManageStatus.IN_USE
    bench.plug(1, None)
    await RisingEdge(dut.clk)
    bench.reserve(1 << 3)
    assert await bench.change(**replace, port=3) == ManageStatus.DRIVE_UNAVAILABLE
    bench.reserve(0)
    assert await bench.change(**replace, port=1) == ManageStatus.DRIVE_UNAVAILABLE
    bench.plug(3, DATA_OFFSET_BLOCKS + 1)
    assert await bench.change(**replace, port=3) == ManageStatus.NO_SPACE
    bench.plug(3, 100_000)

    async def watch() -> None:
        while True:
            dut.member_read__0__address.value = 1
            await RisingEdge(dut.clk)
            await FallingEdge(dut.clk)
            port = sample(dut.member_read__0__data)
            failed, stale = sample(dut.drives__failed), sample(dut.drives__stale)
            assert (failed | stale) >> port & 1, "a good member"

    watching = cocotb.start_soon(watch())
    assert await bench.change(**replace, port=3) == ManageStatus.DONE
    watching.cancel()
    await bench.compare()
    assert bench.model.used & 0b11111 == 0b01101 and bench.model.stale == 0b01000
    assert await bench.change(ManageOpcode.CHECK_EMPTY, array=0) == ManageStatus.IN_USE
    assert await bench.change(ManageOpcode.SETTLE, array=0, complete=1) == ManageStatus.DONE
    assert bench.model.stale == 0
    await bench.compare()
    # The same drive comes back, and goes while it is rebuilt.
    bench.plug(0, None)
    await RisingEdge(dut.clk)
    bench.plug(0, 100_000)
    again = {"opcode": ManageOpcode.REPLACE, "array": 0, "position": 0, "port": 0}
    assert await bench.change(**again) == ManageStatus.DONE
    await bench.compare()
    bench.fail.send(0)
    await bench.fail.drained()
    bench.model.fail(0)
    await bench.compare()
    assert bench.model.failed & 1 and not bench.model.stale


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_members_back(dut):
    """Only the drive that was the member, once it is there again, and it is stale then."""
    bench = Bench(dut, this_config(), random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
        bench.name(port, 0xABC0 + port)
    await bench.change(ManageOpcode.CREATE_ARRAY, level=Level.RAID5.value, drives=0b0111)
    back = {"opcode": ManageOpcode.RE_ADD, "array": 0, "position": 1}
    assert await bench.change(**back) == ManageStatus.IN_USE
    bench.plug(1, None)
    await RisingEdge(dut.clk)
    assert await bench.change(**back) == ManageStatus.DRIVE_UNAVAILABLE
    bench.plug(1, 100_000)
    for identity in (0xABC3, 0, 0xABC1 | 1 << 63):
        bench.name(1, identity)
        assert await bench.change(**back) == ManageStatus.OTHER_DRIVE
    bench.name(1, 0xABC1)
    assert await bench.change(**back) == ManageStatus.DONE
    assert bench.model.stale == 0b0010 and not bench.model.failed & 0b0010
    await bench.compare()
    # Of a drive that does not say who it is nobody knows that it is the same.
    bench.name(0, 0)
    assert await bench.change(ManageOpcode.SETTLE, array=0, complete=1) == ManageStatus.DONE
    for port in (0, 3):
        bench.plug(port, None)
        await RisingEdge(dut.clk)
        bench.plug(port, 100_000)
        bench.name(port, 0)
    replaced = {"array": 0, "position": 0, "port": 3}
    assert await bench.change(ManageOpcode.REPLACE, **replaced) == ManageStatus.DONE
    bench.fail.send(3)
    await bench.fail.drained()
    bench.model.fail(3)
    assert await bench.change(**{**back, "position": 0}) == ManageStatus.OTHER_DRIVE
    bench.name(3, 0xABC3)
    assert await bench.change(**{**back, "position": 0}) == ManageStatus.OTHER_DRIVE


@pytest.mark.parametrize("config", [name for name in CONFIGS if CONFIGS[name].background])
def test_members(config):
    run_tables(config, module=__name__, testcase="replaces_members")


def test_members_that_come_back():
    run_tables("board", module=__name__, testcase="takes_members_back")


class TakesAnyDrive(Identities):
    """Planted bug: every drive is the one that was there."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.same.eq(1)
        return m


def test_another_drive_is_found(monkeypatch):
    monkeypatch.setattr("hdl.array.tables.tables.Identities", TakesAnyDrive)
    with pytest.raises(SimulationError, match="takes_members_back"):
        run_tables(
            "board",
            name="tables_take_any_drive",
            module=__name__,
            testcase="takes_members_back",
        )
