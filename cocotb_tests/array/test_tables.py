"""Array tables against a model: random changes, legal and not, drives that come and go."""

import gc
import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.array.tables_bench import (
    CONFIGS,
    METADATA,
    Bench,
    run_tables,
    this_config,
)
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import cycles_pass, sample, start, wait_until
from hdl.array.tables.tables import ArrayTables
from hdl.config import DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.geometry import Level, geometry
from hdl.flow.manage import MIGRATION_END_SHIFT, ManageOpcode, ManageStatus, MigrationEnd
from hdl.flow.table_read import volume
from sim.card.layouts import rotation_of_name
from sim.golden.layout import MAX_STRIP_BLOCKS, MIRRORED, PARITIES, rotations

CHANGES = 260


class Changes(Bench):
    """A bench that thinks up changes."""

    def array_request(self) -> dict:
        """A random array, mostly one that can exist."""
        generator, model = self.generator, self.model
        free = [
            port
            for port in range(self.config.ports)
            if not (model.used | ~model.present) >> port & 1
        ]
        if generator.random() < 0.1:
            free = list(range(MAX_DRIVES))
        level = generator.choice((*Level, *Level, Level.RAID10))
        code = level.value if generator.random() < 0.97 else generator.choice((2, 3, 4, 14))
        count = 1 if level == Level.JBOD else generator.randint(0, min(len(free), 12))
        if generator.random() < 0.2:
            count = len(free)
        spans = generator.choice((0, 0, 1, 2, 3, 4))
        if PARITIES[level.name] == 0 and generator.random() < 0.9:
            spans = generator.choice((0, 1))
        copies = generator.choice((0, 0, 1, 2, 3))
        if level.name not in MIRRORED and generator.random() < 0.9:
            copies = generator.choice((0, 1))
        rotation = rotation_of_name(generator.choice(rotations(level.name))).value
        if generator.random() < 0.1:
            rotation = generator.randrange(16)
        degraded = {}
        drives = sum(1 << port for port in generator.sample(free, min(count, len(free))))
        if self.config.background and generator.random() < 0.4:
            degraded = {"degraded": 1}
            absent = [
                port
                for port in range(self.config.ports)
                if not (model.used | model.present) >> port & 1
            ]
            more = generator.sample(absent, min(len(absent), generator.randrange(4)))
            drives |= sum(1 << port for port in more)
        return degraded | {
            "level": code,
            "strip_shift": generator.choice((0, 1, 4, 8, 9, generator.randrange(10))),
            "rotation": rotation,
            "copies": copies,
            "spans": spans,
            "drives": drives,
            "assumed": generator.getrandbits(1),
        }

    def replace_request(self) -> dict:
        """A random replacement: mostly of a failed member, by a drive that is free or was there."""
        generator, model = self.generator, self.model
        number = generator.choice([*model.arrays, generator.randrange(self.config.arrays)])
        members = model.arrays[number].members if number in model.arrays else [0]
        failed = [place for place, port in enumerate(members) if model.failed >> port & 1]
        position = generator.choice([*failed, *failed, generator.randrange(40)])
        free = [port for port in range(self.config.ports) if not model.used >> port & 1]
        old = members[position] if position < len(members) else 0
        port = generator.choice([*free, old, old, generator.randrange(MAX_DRIVES)])
        return {"array": number, "position": position, "port": port}

    async def migrate_about(self) -> None:
        """A migration begins, or one ends, with its drives as they are or one of them failed."""
        generator, model = self.generator, self.model
        number = generator.choice([*model.migrations, generator.randrange(self.config.arrays)])
        if number in model.migrations or generator.random() < 0.1:
            if number in model.migrations and generator.random() < 0.5:
                position, port, _ = model.migrations[number]
                failing = generator.choice((port, model.arrays[number].members[position]))
                self.fail.send(failing)
                await self.fail.drained()
                model.fail(failing)
            complete = generator.getrandbits(1)
            await self.change(ManageOpcode.END_MIGRATION, array=number, complete=complete)
            return
        for _ in range(3):
            if number in model.migrations or number not in model.arrays:
                return
            request = self.replace_request() | {"array": number}
            request["position"] = generator.randrange(len(model.arrays[number].members))
            await self.change(ManageOpcode.MIGRATE, **request, spare=generator.getrandbits(1))

    def volume_request(self) -> dict:
        """A random volume: whole arrays, parts, edges, and some that do not fit."""
        generator, model = self.generator, self.model
        array = generator.choice([*model.arrays, generator.randrange(256)])
        blocks = model.arrays[array].blocks if array in model.arrays else 1000
        inside = generator.randrange(blocks)
        first = generator.choice((0, 0, blocks // 2, blocks - 1, blocks, inside))
        length = generator.choice((0, 1, blocks // 4, blocks - first, blocks - first + 1, blocks))
        return {"array": array, "start": first, "blocks": max(0, length)}


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def holds_what_the_model_holds(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = this_config()
    bench = Changes(dut, config, generator)
    await start(dut)
    sizes = (DATA_OFFSET_BLOCKS, DATA_OFFSET_BLOCKS + 200, 100_000, 1 << 32, (1 << 40) - 1)
    for port in range(config.ports):
        bench.plug(port, generator.choice(sizes[2:4]))
    for step in range(CHANGES):
        draw = generator.random()
        if draw < 0.35:
            await bench.change(ManageOpcode.CREATE_ARRAY, **bench.array_request())
        elif draw < 0.5:
            array = generator.choice([*bench.model.arrays, generator.randrange(256)])
            await bench.change(ManageOpcode.DELETE_ARRAY, array=array)
        elif draw < 0.75:
            await bench.change(ManageOpcode.CREATE_VOLUME, **bench.volume_request())
        elif draw < 0.9:
            number = generator.choice([*bench.model.volumes, generator.randrange(256)])
            await bench.change(ManageOpcode.DELETE_VOLUME, volume=number)
        elif draw < 0.93 or (draw < 0.96 and not config.background):
            port = generator.randrange(config.ports)
            absent = not bench.model.present >> port & 1
            size = generator.choice(sizes) + generator.randrange(MAX_STRIP_BLOCKS)
            bench.plug(port, min(size, (1 << 40) - 1) if absent else None)
        elif draw < 0.96:
            for _ in range(3):
                await bench.change(ManageOpcode.REPLACE, **bench.replace_request())
                if config.intent_chunks:
                    request = bench.replace_request()
                    if generator.random() < 0.5:
                        members = bench.model.arrays.get(request["array"])
                        for port in members.members if members else []:
                            bench.plug(port, bench.model.capacity[port])
                    await bench.change(ManageOpcode.RE_ADD, **request)
            for _ in range(3):
                await bench.migrate_about()
            number = generator.choice([*bench.model.arrays, generator.randrange(256)])
            after = generator.choice((ManageOpcode.SETTLE, ManageOpcode.CHECK_EMPTY))
            await bench.change(after, array=number, complete=generator.randrange(2))
            bench.model.refusing = generator.getrandbits(MAX_DRIVES) & generator.getrandbits(
                MAX_DRIVES
            )
            bench.model.unwiped = generator.getrandbits(MAX_DRIVES) & generator.getrandbits(
                MAX_DRIVES
            )
            bench.reserve(1 << generator.randrange(MAX_DRIVES) if generator.random() < 0.5 else 0)
        else:
            port = generator.randrange(MAX_DRIVES)
            bench.fail.send(port)
            await bench.fail.drained()
            bench.model.fail(port)
        await RisingEdge(dut.clk)
        if step % 20 == 0 or step == CHANGES - 1:
            await bench.compare()
    assert sample(dut.busy) == 0, "busy at rest"
    dut._log.info("answers: %s", {status.name: count for status, count in bench.seen.items()})


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def remembers_lost_drives(dut):
    """A member that was away stays failed while it is one; changes are pulsed. Then it is as good
    as any, unless it was given up and no other drive has come in its place."""
    config = this_config()
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
    array = {"level": Level.RAID5.value, "strip_shift": 2, "drives": 0b0111}
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    await bench.compare()

    async def pulses(action) -> int:
        action()
        count = 0
        for _ in range(6):
            await RisingEdge(dut.clk)
            count += sample(dut.drives__changed)
        return count

    assert await pulses(lambda: bench.plug(1, None)) == 1
    assert await pulses(lambda: bench.plug(1, 100_000)) == 0, "a lost drive came back by itself"
    assert bench.model.failed & 0b1111 == 0b0010
    await bench.compare()
    assert await pulses(lambda: bench.plug(3, None)) == 1
    assert await pulses(lambda: bench.plug(3, 100_000)) == 1
    await bench.compare()
    await bench.change(ManageOpcode.DELETE_ARRAY, array=0)
    await bench.compare()
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    assert bench.model.failed & 0b1111 == 0
    await bench.compare()

    # Two are given up, and another drive comes in the place of one of them while it is a member.
    for port in (0, 1):
        bench.fail.send(port)
        await bench.fail.drained()
        bench.model.fail(port)
    bench.plug(0, None)
    await RisingEdge(dut.clk)
    bench.plug(0, 100_000)
    await RisingEdge(dut.clk)
    assert bench.model.failed & 0b1111 == 0b0011
    await bench.compare()
    assert await bench.change(ManageOpcode.DELETE_ARRAY, array=0) == ManageStatus.DONE
    assert bench.model.failed & 0b1111 == 0b0010, "what was given up, and only that"
    await bench.compare()
    bench.plug(1, None)
    await RisingEdge(dut.clk)
    bench.plug(1, 100_000)
    await RisingEdge(dut.clk)
    assert bench.model.failed & 0b1111 == 0
    await bench.compare()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def nobody_trusts_a_drive_that_appears_late(dut):
    """A drive that comes while an array is created without it was not looked at: it has failed, and
    is nobody that could be had again. This one is far too small."""
    config = this_config()
    if not config.background:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
    shape = {"level": Level.RAID5.value, "strip_shift": 2, "drives": 0b11111}
    late, most = 0, 1
    for delay in range(1, 2000, 7):
        if delay > most:
            break
        bench.requests.send(opcode=ManageOpcode.CREATE_ARRAY, degraded=1, assumed=1, **shape)
        changing = cocotb.start_soon(bench.answer())
        await ClockCycles(dut.clk, delay)
        bench.name(4, 77)
        bench.plug(4, DATA_OFFSET_BLOCKS)
        most = delay if changing.done() else delay + 7
        answer = await changing
        assert answer.status in (ManageStatus.DONE, ManageStatus.NO_SPACE), answer
        if answer.status == ManageStatus.DONE:
            failed = sample(dut.drives__failed)
            assert failed >> 4 & 1, f"a stranger is trusted after {delay} cycles"
            assert sample(dut.drives__used) == 0b11111
            late += 1
            if config.intent_chunks:
                bench.requests.send(opcode=ManageOpcode.RE_ADD, array=0, position=4)
                answer = await bench.answer()
                assert answer.status == ManageStatus.OTHER_DRIVE
            bench.model.quiesce(0, goes=1)
            bench.requests.send(opcode=ManageOpcode.DELETE_ARRAY, array=0)
            answer = await bench.answer()
            assert answer.status == ManageStatus.DONE
        bench.plug(4, None)
    assert late > 10


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def nobody_gets_what_is_referred_to(dut):
    """Volumes, arrays and drives that are left are free when nobody is inside for them."""
    config = this_config()
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
    array = {"level": Level.RAID1.value, "strip_shift": 2, "drives": 0b0011}
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE

    async def held(opcode: ManageOpcode, check, **fields) -> None:
        """``check`` holds for as long as somebody is inside, and then the change ends."""
        bench.quiesces.paused = True
        changing = cocotb.start_soon(bench.change(opcode, **fields))
        await cycles_pass(dut.clk, 200)
        assert not changing.done(), f"{opcode} does not wait"
        await check()
        bench.quiesces.paused = False
        assert await changing == ManageStatus.DONE
        await bench.compare()

    async def no_volume() -> None:
        for entry in await bench.look("volume_read", volume(config), 0, 2):
            assert not entry.valid

    async def used(ports: int) -> None:
        assert sample(dut.drives__used) == ports
        for entry in await bench.look("geometry_read", geometry(config), 0, 2):
            assert entry.valid

    await held(ManageOpcode.CREATE_VOLUME, no_volume, array=0)
    await held(ManageOpcode.DELETE_VOLUME, no_volume, volume=0)
    if config.background:
        migrating = {"array": 0, "position": 1, "port": 2, "spare": 0}
        for complete, members in ((0, 0b0011), (1, 0b0101)):
            assert await bench.change(ManageOpcode.MIGRATE, **migrating) == ManageStatus.DONE
            end = {"array": 0, "complete": complete}
            await held(ManageOpcode.END_MIGRATION, lambda: used(0b0111), **end)
            assert sample(dut.drives__used) == members
        bench.plug(2, None)
        replace = {"array": 0, "position": 1, "port": 3}
        await held(ManageOpcode.REPLACE, lambda: used(0b1101), **replace)
        assert sample(dut.drives__used) == 0b1001

        # The same drive is had again: it has failed until nobody knows it as it was.
        async def failed() -> None:
            failed, stale = sample(dut.drives__failed), sample(dut.drives__stale)
            assert failed & 0b1000 and not stale & 0b1000

        bench.plug(3, None)
        await RisingEdge(dut.clk)
        bench.plug(3, 100_000)
        await RisingEdge(dut.clk)
        await held(ManageOpcode.REPLACE, failed, **replace)
    members = sample(dut.drives__used)
    await held(ManageOpcode.DELETE_ARRAY, lambda: used(members), array=0)
    assert sample(dut.drives__used) == 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def the_drive_that_was_wiped_joins(dut):
    """Another drive that comes in its place meanwhile does not: nobody knows what it says."""
    config = this_config()
    if not config.metadata:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    array = {"level": Level.RAID1.value, "strip_shift": 2, "drives": 0b0011}
    for port in range(3):
        bench.plug(port, 100_000)
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    bench.plug(1, None)
    where = {"array": 0, "port": 2}
    asks, listens = dut.wipe__valid, dut.wiped__ready
    for opcode, position in ((ManageOpcode.REPLACE, 1), (ManageOpcode.MIGRATE, 0)):
        for away in (0, 2, 30):
            bench.wiped.paused = True
            bench.model.unwiped = 0 if away else 0b100
            bench.requests.send(opcode=opcode, position=position, **where)
            await wait_until(dut, lambda: sample(asks), cycles=400, what="wipe")
            bench.model.wipes.append(2)
            await wait_until(dut, lambda: sample(listens), cycles=400, what="wiped")
            if away:
                bench.plug(2, None)
                await cycles_pass(dut.clk, away)
                bench.plug(2, 100_000)
                await cycles_pass(dut.clk, 3)
            bench.wiped.paused = False
            answer = await bench.answer()
            assert answer.status == ManageStatus.DRIVE_UNAVAILABLE, (opcode, away, answer)
            assert not sample(dut.drives__used) >> 2 & 1


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drives_are_flushed_before_they_are_trusted(dut):
    """A drive that is rebuilt or migrated to is a good member only if it has flushed since."""
    config = this_config()
    if not config.background:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    array = {"level": Level.RAID1.value, "strip_shift": 2, "drives": 0b0011}
    for refusing in (0, 0b0100):
        bench.model.refusing = 0
        for port in range(4):
            bench.plug(port, 100_000)
        assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
        bench.plug(1, None)
        replace = {"array": 0, "position": 1, "port": 2}
        assert await bench.change(ManageOpcode.REPLACE, **replace) == ManageStatus.DONE
        bench.model.refusing = refusing
        bench.flushed.paused = True
        settling = cocotb.start_soon(bench.change(ManageOpcode.SETTLE, array=0, complete=1))
        await cycles_pass(dut.clk, 200)
        assert sample(dut.drives__stale) == 0b0100
        assert not settling.done(), "trusted without a flush"
        bench.flushed.paused = False
        assert await settling == ManageStatus.DONE
        await RisingEdge(dut.clk)
        assert sample(dut.drives__stale) == 0
        assert sample(dut.drives__failed) & 0b0101 == refusing
        await bench.compare()
        assert await bench.change(ManageOpcode.DELETE_ARRAY, array=0) == ManageStatus.DONE


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def all_live_drives_are_flushed(dut):
    """Each by itself: one that does not flush takes no trust from a stale one that does, but is
    told of. One that has failed meanwhile is not. Stale drives that are not through stay stale."""
    config = this_config()
    if not config.background:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(5):
        bench.plug(port, 100_000)
    for drives in (0b0011, 0b1100):
        array = {"level": Level.RAID1.value, "strip_shift": 2, "drives": drives}
        assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    bench.plug(1, None)
    replace = {"array": 0, "position": 1, "port": 4}

    async def settle(goes: int | None = None, complete: int = 0) -> MigrationEnd:
        """What is answered. A drive may go before the flush has ended."""
        bench.flushed.paused = True
        bench.model.settle({"array": 0, "complete": complete})
        bench.requests.send(opcode=ManageOpcode.SETTLE, array=0, complete=complete)
        await cycles_pass(dut.clk, 200)
        assert not bench.model.flushes and bench.responses.idle, "it does not wait for the flush"
        if goes is not None:
            bench.plug(goes, None)
        bench.flushed.paused = False
        answer = await bench.answer()
        assert answer.status == ManageStatus.DONE
        await RisingEdge(dut.clk)
        await bench.compare()
        return MigrationEnd(answer.index >> MIGRATION_END_SHIFT)

    joined, released = MigrationEnd.JOINED, MigrationEnd.RELEASED
    assert await bench.change(ManageOpcode.REPLACE, **replace) == ManageStatus.DONE
    for refusing, end in ((0, joined), (0b10000, released), (0b00001, released), (0b1100, joined)):
        bench.model.refusing = refusing
        assert await settle() == end, f"{refusing:#b}"
        assert sample(dut.drives__stale) == 0b10000
    bench.model.refusing = 0b00001
    assert await settle(complete=1) == released
    assert not sample(dut.drives__stale) and not sample(dut.drives__failed) & 0b10001
    # None is stale any more, so it is not the one that was rebuilt.
    bench.model.refusing = 0
    assert await settle(complete=1) == released
    assert await settle() == joined
    bench.model.refusing = 0b00001
    assert await settle(goes=0) == joined
    # The one that was rebuilt goes: nothing has come of the job.
    bench.model.refusing = 0
    bench.plug(1, 100_000)
    replace = {"array": 0, "position": 0, "port": 1}
    assert await bench.change(ManageOpcode.REPLACE, **replace) == ManageStatus.DONE
    assert await settle(goes=1, complete=1) == released


@pytest.mark.parametrize("config", [*CONFIGS, METADATA])
def test_tables(config):
    run_tables(config, module=__name__)


class BelievesAll(ArrayTables):
    """Planted bug: nobody looks whether all drives have flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.flushed.ready & self.flushed.valid):
            joined = MigrationEnd.JOINED.value << MIGRATION_END_SHIFT
            m.d.sync += self.changes.response.payload.index.eq(joined)
        return m


class FlushesTheRebuilt(ArrayTables):
    """Planted bug: only drives that have been rebuilt are flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.flush.payload.eq(self._rebuilt)
        return m


class TakesAnotherOne(ArrayTables):
    """Planted bug: a drive that comes in the place of the one that was wiped joins."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._left.eq(0)
        return m


def test_a_drive_that_was_not_wiped_is_found(monkeypatch):
    monkeypatch.setattr("cocotb_tests.array.tables_bench.ArrayTables", TakesAnotherOne)
    with pytest.raises(SimulationError, match="the_drive_that_was_wiped_joins"):
        run_tables(
            METADATA,
            name="tables_TakesAnotherOne",
            module=__name__,
            testcase="the_drive_that_was_wiped_joins",
        )


@pytest.mark.parametrize(
    "bug", [BelievesAll, pytest.param(FlushesTheRebuilt, marks=pytest.mark.slow)]
)
def test_drives_that_are_not_flushed_are_found(bug, monkeypatch):
    monkeypatch.setattr("cocotb_tests.array.tables_bench.ArrayTables", bug)
    with pytest.raises(SimulationError, match="all_live_drives_are_flushed"):
        run_tables(
            "board",
            name=f"tables_{bug.__name__}",
            module=__name__,
            testcase="all_live_drives_are_flushed",
        )


def test_planted_bug_is_found(monkeypatch):
    """Strips of 2 MiB are let through."""
    monkeypatch.setattr("hdl.array.tables.level_rules.MAX_STRIP_SHIFT", 9)
    with pytest.raises(SimulationError, match="holds_what_the_model_holds"):
        run_tables(
            "board",
            name="tables_allow_long_strips",
            module=__name__,
            testcase="holds_what_the_model_holds",
        )


@pytest.mark.filterwarnings("ignore:.*created but never used")
def test_readers_are_checked():
    with pytest.raises(ValueError, match="member_readers must be at least 1"):
        ArrayTables(config=Config(), geometry_readers=1, member_readers=0, volume_readers=1)
    gc.collect()
