"""A FLUSH while drives go: tracker and dispatch together, on arrays of every level."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import (
    FLUSH_IGNORES,
    Table,
    flush_operation,
    pack_geometry,
)
from cocotb_tests.fields import check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, start, wait_until
from hdl.array.tracker import Tracker
from hdl.config import MAX_DRIVES, Config, board, small
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.table_read import geometry_read, member_address, member_read
from hdl.stripe.dispatch import Dispatch
from sim.golden.layout import Layout

CONFIGS = {"board": board(MAX_DRIVES), "small": small()}
ROWS = 1 << 16
ROUNDS = 40
LAYOUTS = (
    Layout("RAID0", 3, 4),
    Layout("JBOD", 1, 4),
    Layout("RAID1", 2, 4),
    Layout("RAID1", 3, 4),
    Layout("RAID10", 4, 4),
    Layout("RAID10", 8, 4),
    Layout("RAID10", 5, 4),
    Layout("RAID10", 7, 4, 3),
    Layout("RAID5", 4, 4),
    Layout("RAID6", 6, 4),
    Layout("RAID5", 6, 4, 1, 2),
    Layout("RAID6", 8, 4, 1, 2),
)


class Assembly(wiring.Component):
    """`Tracker` and `Dispatch`; a volume's number is that of its array."""

    def __init__(self, *, config: Config, dispatch: type[Dispatch] = Dispatch):
        self._config = config
        self._dispatch = dispatch
        super().__init__(
            {
                "host_command": In(stream.Signature(command(config))),
                "completion": Out(stream.Signature(completion(config))),
                "operation": Out(stream.Signature(operation(config))),
                "flushed": In(stream.Signature(finished(config))),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "failed": In(MAX_DRIVES),
                "stale": In(MAX_DRIVES),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.tracker = tracker = Tracker(config=config)
        m.submodules.dispatch = dispatch = self._dispatch(config=config)
        connect(m, flipped(self.host_command), tracker.host_command)
        connect(m, tracker.completion, flipped(self.completion))
        connect(m, dispatch.operation, flipped(self.operation))
        connect(m, flipped(self.flushed), tracker.flushed)
        connect(m, dispatch.expected, tracker.expected)
        connect(m, dispatch.rejected, tracker.rejected)
        connect(m, dispatch.reads.geometry, flipped(self.geometry_read))
        connect(m, dispatch.reads.member, flipped(self.member_read))
        extent, sent = dispatch.extent.payload, tracker.command
        m.d.comb += [
            dispatch.extent.valid.eq(sent.valid),
            sent.ready.eq(dispatch.extent.ready),
            extent.slot.eq(sent.payload.slot),
            extent.opcode.eq(sent.payload.opcode),
            extent.array.eq(sent.payload.volume),
            extent.final.eq(1),
            extent.last.eq(1),
            dispatch.drives.failed.eq(self.failed),
            dispatch.drives.stale.eq(self.stale),
        ]
        return m


def has_lost_data(layout: Layout, bad: set[int]) -> bool:
    """Whether a block can neither be read nor worked out without the members ``bad``."""
    if layout.copies > 1:
        strips = [strip * layout.strip_blocks for strip in range(layout.drives)]
        return any(all(place.position in bad for place in layout.copies_of(b)) for b in strips)
    return any(
        len(bad & {*range(at, at + layout.width)}) > layout.parities
        for at in range(0, layout.drives, layout.width)
    )


class Bench:
    """One array, its drives, and the FLUSH that is out."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut, self.config, self.random = dut, config, generator
        self.geometries = Table(dut, "geometry_read")
        self.members = Table(dut, "member_read")
        self.commands = StreamSource(dut, "host_command", layout=command(config))
        self.ends = StreamSource(dut, "flushed", layout=finished(config))
        self.operations = StreamSink(
            dut,
            "operation",
            layout=operation(config),
            callback=self._ask,
            ignores=FLUSH_IGNORES,
        )
        self.completions = StreamSink(dut, "completion", layout=completion(config))
        self.slot = 0
        self.out: list[int] = []
        self.ports: list[int] = []
        self.failed: set[int] = set()
        self.stale: set[int] = set()
        self.show()

    def _ask(self, seen) -> None:
        assert seen.port in self.ports
        wanted = flush_operation(port=seen.port, owner=Owner.COMMAND, index=self.slot)
        check_fields(seen, wanted, "operation")
        assert seen.port not in self.out, "a drive is asked twice at once"
        self.out.append(seen.port)

    def show(self) -> None:
        self.dut.failed.value = sum(1 << self.ports[member] for member in self.failed)
        self.dut.stale.value = sum(1 << self.ports[member] for member in self.stale)

    def array(self, layout: Layout) -> None:
        self.ports = self.random.sample(range(self.config.ports), layout.drives)
        self.geometries.entries[0] = pack_geometry(self.config, layout, ROWS)
        for position, port in enumerate(self.ports):
            self.members.entries[
                pack(member_address(self.config), array=0, position=position)
            ] = port
        self.failed, self.stale = set(), set()
        self.show()

    def lose(self, layout: Layout, *, most: int) -> None:
        """Some members that are left go, or begin to be rebuilt."""
        for member in self.random.sample(range(layout.drives), min(most, layout.drives)):
            if self.config.background and self.random.random() < 0.3:
                self.stale.add(member)
            else:
                self.failed.add(member)
        self.show()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def no_flush_of_a_failed_array_succeeds(dut):
    """A drive that is gone is no excuse when the array cannot do without it any more."""
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, generator)
    await start(dut)
    layouts = [layout for layout in LAYOUTS if layout.drives <= config.ports]
    seen: set[tuple[bool, bool]] = set()
    for number in range(ROUNDS * len(layouts)):
        layout = layouts[number % len(layouts)]
        bench.array(layout)
        if generator.random() < 0.3:
            bench.lose(layout, most=generator.choice((1, 1, 2)))
        began_lost = has_lost_data(layout, bench.failed | bench.stale)
        bench.slot = number % config.commands
        bench.commands.send(slot=bench.slot, opcode=HostOpcode.FLUSH)
        goes = generator.random() < 0.6
        told_lost = began_lost
        aborts = generator.choice((0, 0, 1, 3))
        while not len(bench.completions):
            await RisingEdge(dut.clk)
            if goes and bench.out and generator.random() < 0.3:
                bench.lose(layout, most=generator.choice((1, 2, 2, 3)))
                goes = False
            if not bench.out or not bench.ends.idle or generator.random() < 0.5:
                continue
            port = bench.out.pop(generator.randrange(len(bench.out)))
            status = DriveStatus.GOOD
            if bench.ports.index(port) in bench.failed:
                status = DriveStatus.GONE
            elif aborts and generator.random() < 0.3:
                status, aborts = DriveStatus.ABORTED, aborts - 1
            if status != DriveStatus.GOOD:
                told_lost |= has_lost_data(layout, bench.failed | bench.stale)
            bench.ends.send(opcode=Opcode.FLUSH, index=bench.slot, status=status)
        ended = await bench.completions.receive()
        assert ended.slot == bench.slot
        lost = has_lost_data(layout, bench.failed | bench.stale)
        about = f"{layout.level} of {layout.drives}, failed {bench.failed}, stale {bench.stale}"
        if told_lost:
            assert ended.status == Status.WRITE_FAULT, f"flush of {about} ends with {ended.status}"
        if not lost:
            assert ended.status == Status.SUCCESS, f"flush of {about} ends with {ended.status}"
        assert not bench.out, "ended before all drives have answered"
        seen.add((told_lost, bool(bench.failed)))
        await wait_until(dut, lambda: bench.ends.idle, cycles=100, what="rest")
    assert {(False, False), (False, True), (True, True)} <= seen


@pytest.mark.parametrize("config", CONFIGS)
def test_flush(config):
    simulate(
        Assembly(config=CONFIGS[config]),
        name=f"flush_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class CountsLiveDrives(Dispatch):
    """Planted bug: drives that are being rebuilt count as good ones."""

    def elaborate(self, platform):
        outer = self.drives.stale
        self.drives.stale = type(outer)(len(outer), name="ignored")
        try:
            return super().elaborate(platform)
        finally:
            self.drives.stale = outer


@pytest.mark.slow
def test_planted_bugs_are_found(monkeypatch):
    def refuses(name: str, dispatch: type[Dispatch] = Dispatch) -> None:
        with pytest.raises(SimulationError, match="no_flush_of_a_failed_array"):
            simulate(
                Assembly(config=CONFIGS["board"], dispatch=dispatch),
                name=f"flush_{name}",
                module=__name__,
                parameters={"CONFIG": "board"},
            )

    refuses("counts_live_drives", CountsLiveDrives)
    # A drive that went away is not asked about again.
    monkeypatch.setattr("hdl.array.tracker.flush_rounds", lambda _: 1)
    refuses("one_round")
