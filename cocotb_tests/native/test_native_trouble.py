"""The whole controller on a link that makes trouble, and what its drives are told and keep."""

import os
from collections import Counter
from operator import xor

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_planted import WaitsForNobody, plant
from cocotb_tests.nvme.nvme_heads import TellsWhatWasAskedFor
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.row_check import checked_row
from sim.golden.nvme import DATA_TRANSFER_ERROR, INVALID_FIELD, SET_FEATURES, WRITE_FAULT
from sim.native.harness import Flow, ReadEnd
from sim.native.parameters import MICROSECOND, NANOSECOND, Ideal, LinkParameters
from sw.driver import background, raid
from sw.driver.commands import Command, NvmeError

SEED = int(os.environ.get("SEED") or "1")
ROWS = 32
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND)
FORGETFUL = FAST.changed(volatile_cache=True)

COMMANDS = 60
TROUBLE = LinkParameters(
    hold_every=40,
    hold_ps=2 * MICROSECOND,
    ready_percent=70,
    straddle_percent=80,
    random_splits=True,
    shuffle=True,
    read_jitter_ps=400 * NANOSECOND,
    np_req_ps=300 * NANOSECOND,
    posted_headers=6,
    non_posted_headers=4,
    device_posted_headers=2,
    device_non_posted_headers=1,
    seed=SEED,
)
VOLATILE_WRITE_CACHE = 6
DRIVE_COUNTERS = ("writes", "written_blocks", "fua_writes", "fua_blocks", "flushes")


@pytest.mark.parametrize("level", [Level.RAID1, Level.RAID6], ids=["RAID1", "RAID6"])
def test_load_on_a_troubled_link(level):
    """Held credits, few of them, a ``tready`` that falls at any time, completions in pieces."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL, link=TROUBLE) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(2 if level is Level.RAID1 else 6))
            await card.load(volume, COMMANDS)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))
        counted = card.harness.statistics()
    assert counted["rq_stall_cycles"] > 1000
    assert counted["rc_shared_beats"] > 10
    assert not counted["stray_reads"] and not counted["stray_writes"]


@pytest.mark.slow
def test_slots_given_back_too_early_are_found(monkeypatch):
    """A card that reports entries whose read was only asked for gets what the driver has put in
    their slots, on a link without trouble too."""
    plant(monkeypatch, "hdl.nvme.queues.queues.EntryRing", TellsWhatWasAskedFor)
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID0, range(4))
            await card.load(volume, COMMANDS)

        with pytest.raises(RuntimeError, match="command 65535, which is not outstanding"):
            card.run(main())


@pytest.mark.parametrize("end", ReadEnd)
@pytest.mark.parametrize("late", [False, True], ids=["first", "last"])
def test_failed_reads_of_data(end, late):
    """A write whose data cannot be fetched says so, and its blocks are whole; all else goes on."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID5, range(4))
            address = card.buffer(4)
            card.harness.fail_reads(end, address=address + 512, length=512, late=late)
            status = await card.write(volume, 3, 2, address, 0, fua=False)
            assert status == DATA_TRANSFER_ERROR
            assert await card.write(volume, 3, 2, address, 0, fua=False) == 0
            await card.load(volume, COMMANDS // 4)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))
        assert card.harness.statistics()["reads_failed"] == 1


def test_a_stalled_request_stream_loses_nothing():
    """RQ and CC stand still for a long time amid load; credits run out both ways."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

        async def stall() -> None:
            for flow in Flow:
                card.harness.hold(flow, 40_000)
                await card.card.transport.sleep(60_000)

        async def main() -> Volume:
            volume = await card.create(Level.RAID5, range(4))
            card.card.transport.spawn(stall())
            await card.load(volume, 2 * COMMANDS)
            await card.card.transport.sleep(len(Flow) * 60_000)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def changes_while_requests_stall() -> None:
    """Amid load the hard block takes nothing for long, while a volume is deleted and created again,
    the write cache goes off and on, or MSI-X is off.

    None of it is said to be done before commands that it waits for have ended. Nothing lands in the
    next volume, and other volumes lose nothing.
    """
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:
        nvme, transport, choose = card.nvme, card.card.transport, card.random
        other = card.run(card.create(Level.RAID5, range(4)))
        going = card.run(card.create(Level.RAID1, (4, 5)))
        ended: list[int] = []
        waited: Counter[str] = Counter()
        writers = 8

        async def write(number: int) -> None:
            """Writes until the volume has gone."""
            address = card.buffer(4)
            status = 0
            while not status:
                first = choose.randrange(len(going.model) - 4)
                transport.memory.write(address, choose.randbytes(4 * BLOCK_BYTES))
                try:
                    await nvme.write(going.namespace, first, 4, address, number % 2)
                except NvmeError as error:
                    status = error.status
            ended.append(status)

        def contents() -> list[bytes]:
            return [card.stored(port, row) for port in going.ports for row in range(ROWS)]

        async def again() -> None:
            await raid.delete_volume(nvme, going.namespace)
            before = contents()
            await transport.sleep(100_000)
            assert ended == [INVALID_FIELD] * writers, "the volume has gone before its commands"
            assert contents() == before, "old writes have landed"
            assert await raid.create_volume(nvme, 1) == going.namespace
            ended.clear()
            for number in range(writers):
                transport.spawn(write(number))

        async def cache(on: int) -> None:
            await nvme.admin(Command(SET_FEATURES, dwords=(VOLATILE_WRITE_CACHE, on)))

        async def uncached() -> None:
            await cache(0)
            await cache(1)

        async def without_messages() -> None:
            card.harness.set_status("msix_enable", 0)
            await transport.sleep(choose.uniform(0, 60_000))
            card.harness.set_status("msix_enable", 1)

        async def main() -> None:
            for number in range(writers):
                transport.spawn(write(number))
            for change in (again, uncached, without_messages) * 6:
                stall_ns = card.harness.now_ns + choose.uniform(0, 3_000)

                async def stall(time_ns=stall_ns) -> None:
                    """The card has fetched the command by then, or has not."""
                    await transport.sleep(time_ns - card.harness.now_ns)
                    card.harness.hold(Flow.RQ_READY, 40_000)

                async def ask(change=change, time_ns=stall_ns) -> None:
                    await change()
                    waited[change.__name__] += card.harness.now_ns > time_ns

                await card.together((ask(), stall(), card.load(other, 12)))
            await raid.delete_volume(nvme, going.namespace)
            await card.read_all(other)

        card.run(main())
        card.finish(other)
    assert len(waited) == 3 and min(waited.values()) >= 3, f"hardly anything waited: {waited}"


def test_changes_while_requests_stall():
    changes_while_requests_stall()


@pytest.mark.slow
def test_a_volume_that_goes_before_its_commands_is_found(monkeypatch):
    plant(monkeypatch, "hdl.core.References", WaitsForNobody)
    with pytest.raises(AssertionError, match=r"old writes have landed|before its commands"):
        changes_while_requests_stall()


NARROW = LinkParameters(
    in_order=True,
    late_credits=True,
    non_posted_headers=2,
    posted_headers=8,
    device_posted_headers=2,
    device_non_posted_headers=1,
    seed=SEED,
)
VERSION, CSTS = 0x08, 0x1C
BURST = 8


def test_register_reads_close_no_cycle():
    """The host gives a read's credit back once its completion has left, the hard block holds what
    is behind a read without credit, and completions wait behind register writes: a register read
    must not wait for a write that waits for all of them."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL, link=NARROW) as card:
        harness, transport = card.harness, card.card.transport
        polls, working = 0, True

        async def poll() -> None:
            nonlocal polls
            while working:
                polls += 1
                harness.begin_mmio_read(CSTS, 4)
                for _ in range(BURST):
                    harness.mmio_write32(VERSION, 0)  # it cannot be written
                due = harness.now_ns + card.random.randrange(6_000, 12_000)
                while harness.now_ns < due:  # an answer ends a sleep
                    await transport.sleep(due - harness.now_ns)

        async def main() -> Volume:
            nonlocal working
            volume = await card.create(Level.RAID0, range(4))
            transport.spawn(poll())
            await card.load(volume, 2 * COMMANDS, workers=24, writes=0.9, longest=8)
            working = False
            await transport.sleep(50_000)  # the last answers
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))
        counted = card.harness.statistics()
    assert polls > 50
    assert counted["mmio_reads"] > polls


def test_a_tag_is_not_used_while_the_hard_block_waits_for_it():
    """The card gives a lost read up after 10 to 15 ms, the hard block after 45: if the tag came
    again before, the model would end the run."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:
        harness, transport = card.harness, card.card.transport

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(4))
            address = card.buffer(1)
            began = harness.now_ns
            harness.fail_reads(ReadEnd.LOST, address=address, length=BLOCK_BYTES)
            status = await card.write(volume, 3, 1, address, 0, fua=False)
            assert status == DATA_TRANSFER_ERROR
            while harness.now_ns < began + 60_000_000:
                # More reads than there are tags.
                await card.load(volume, COMMANDS // 3, writes=0.9)
                await transport.sleep(4_000_000)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def counters(card: Card) -> list[dict[str, int]]:
    """What each drive has been told so far."""
    found = [card.harness.drive_statistics(port) for port in range(card.card.config.ports)]
    return [{name: drive[name] for name in DRIVE_COUNTERS} for drive in found]


def difference(card: Card, before: list[dict[str, int]]) -> list[dict[str, int]]:
    """What each drive has been told since."""
    return [
        {name: now[name] - then[name] for name in DRIVE_COUNTERS}
        for now, then in zip(counters(card), before, strict=True)
    ]


async def tell_durable(card: Card, level: Level, drives: int) -> Volume:
    """Writes with FUA and without, and flushes; checks what each drive was told."""
    volume = await card.create(level, range(drives))
    address = card.buffer(16)
    copies = {Level.RAID0: 1, Level.RAID5: 2, Level.RAID6: 3, Level.RAID10: 2}
    least = copies.get(level, drives)
    # With metadata what is written first is marked on the drives before, which nobody counts.
    assert await card.write(volume, 0, 16, address, 0, fua=False) == 0
    assert await card.write(volume, 16, 16, address, 0, fua=False) == 0
    # Of a part of a row, of whole rows, and of more than one.
    for first, blocks in ((1, 1), (5, 2), (0, 16), (20, 11)):
        for fua in (False, True):
            before = counters(card)
            assert await card.write(volume, first, blocks, address, 0, fua=fua) == 0
            told = difference(card, before)
            written = sum(drive["written_blocks"] for drive in told)
            assert written >= blocks + least - 1
            for drive in told:
                wanted = (drive["writes"], drive["written_blocks"]) if fua else (0, 0)
                assert (drive["fua_writes"], drive["fua_blocks"]) == wanted
            assert not any(drive["flushes"] for drive in told)
    for gone in (None, drives - 1):
        if gone is not None and level is not Level.RAID0:
            card.pull(gone)
            await card.write(volume, 0, 16, address, 0, fua=True)
        before = counters(card)
        assert await card.flush(volume) == 0
        live = [port < drives and port not in card.gone for port in range(len(before))]
        told = difference(card, before)
        assert [drive["flushes"] for drive in told] == [int(alive) for alive in live]
        assert not any(drive["writes"] for drive in told)
    return volume


@pytest.mark.parametrize(
    ("level", "drives"),
    [(Level.RAID0, 3), (Level.RAID1, 3), (Level.RAID5, 5), (Level.RAID6, 6), (Level.RAID10, 4)],
    ids=["RAID0", "RAID1", "RAID5", "RAID6", "RAID10"],
)
def test_fua_and_flush_reach_the_drives(level, drives):
    """Every block that a write with FUA changes is written with FUA, parity too, and no other; a
    flush reaches each live member, and no other drive."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        card.finish(card.run(tell_durable(card, level, drives)))


@pytest.mark.parametrize("lost", ["fua", "flush"])
def test_lost_durability_is_found(lost, monkeypatch):
    """The checks fail when FUA or flushes do not get to the card."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        write = card.nvme.write

        async def plain(namespace, block, blocks, address, queue, fua, size) -> None:
            await write(namespace, block, blocks, address, queue, False, size)

        async def nothing(*_) -> None:
            await card.card.transport.sleep(1)

        name, instead = ("write", plain) if lost == "fua" else ("flush", nothing)
        monkeypatch.setattr(card.nvme, name, instead)
        with pytest.raises(AssertionError):
            card.run(tell_durable(card, Level.RAID5, 5))


@pytest.mark.parametrize("level", [Level.RAID0, Level.RAID1], ids=["RAID0", "RAID1"])
def test_what_is_durable_outlives_the_power(level):
    """All drives lose power: what was flushed or written with FUA is there, of the rest a part."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        flushed, volatile, forced = range(8), range(8, 20), range(20, 24)

        async def main() -> Volume:
            volume = await card.create(level, range(3))
            address = card.buffer(32)
            assert await card.write(volume, flushed[0], len(flushed), address, 0, fua=False) == 0
            assert await card.flush(volume) == 0
            for block in volatile:
                assert await card.write(volume, block, 1, address, 0, fua=False) == 0
            assert await card.write(volume, forced[0], len(forced), address, 0, fua=True) == 0
            return volume

        volume = card.run(main())
        card.harness.power_loss()
        lost = 0
        for block in (*flushed, *volatile, *forced):
            (content,) = volume.model.possible(block)
            for place in volume.layout.copies_of(block):
                kept = card.stored(volume.ports[place.position], place.row) == content
                assert kept or block in volatile, f"block {block} was durable"
                lost += not kept
        assert 0 < lost < len(volatile) * volume.layout.copies


@pytest.mark.parametrize("late", [False, True])
def test_what_is_read_with_fua_outlives_the_power(late):
    """NVMe 1.4, 6.9: what a read with FUA returns has been stored before. A read without has not.
    That holds although the drives have not ended the reads yet, be they ``late``."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        looked, others = range(16), range(16, 32)

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(3))
            address = card.buffer(8)
            for first in range(0, 32, 8):
                assert await card.write(volume, first, 8, address, 0, fua=False) == 0
            for port in range(3 if late else 0):
                card.harness.drive_fault(port, -1, at_end=True, delay_ns=300_000)
            for first in range(0, 32, 8):
                fua = first in looked
                await card.nvme.read(volume.namespace, first, 8, address, fua=fua)
            return volume

        volume = card.run(main())
        card.harness.power_loss()

        def kept(block: int) -> bool:
            (content,) = volume.model.possible(block)
            (place,) = volume.layout.copies_of(block)
            return card.stored(volume.ports[place.position], place.row) == content

        assert all(kept(block) for block in looked)
        assert not all(kept(block) for block in others)


def test_what_is_worked_out_with_fua_outlives_the_power():
    """The blocks of the row from which it was worked out are stored by then."""
    pulled, ports = 0, range(3)
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID5, ports)
            address = card.buffer(8)
            for first in range(0, 32, 8):
                assert await card.write(volume, first, 8, address, 0, fua=False) == 0
            card.pull(pulled)
            for first in range(0, 32, 8):
                await card.nvme.read(volume.namespace, first, 8, address, fua=True)
            return volume

        volume = card.run(main())
        card.harness.power_loss()
        gone = 0
        for block in range(32):
            (content,) = volume.model.possible(block)
            (place,) = volume.layout.copies_of(block)
            port = volume.ports[place.position]
            if port == pulled:
                gone += 1
                others = [card.stored(other, place.row) for other in ports if other != pulled]
                assert bytes(map(xor, *others)) == content, f"block {block} is lost"
            else:
                assert card.stored(port, place.row) == content, f"block {block} was not stored"
        assert gone


async def rebuild_some(card: Card, volume: Volume, pulled: int) -> None:
    """A new drive takes the place of member 0. Its rebuild is stopped past the first rows."""
    card.harness.insert(pulled, blank=True)
    await card.card.transport.sleep(100_000)
    await background.set_rate(card.nvme, 1)
    await background.replace_member(card.nvme, volume.array, 0, pulled)
    job = await background.job(card.nvme, volume.array)
    while job.row < 12:
        await card.card.transport.sleep(20_000)
        job = await background.job(card.nvme, volume.array)
    await background.stop_job(card.nvme, volume.array)
    job = await background.job(card.nvme, volume.array)
    assert job.state == JobState.STOPPED and 0 < job.row < ROWS, job


@pytest.mark.parametrize("rebuilds", [False, True])
@pytest.mark.parametrize(
    ("level", "members", "sector_bytes"),
    [(Level.RAID5, 3, 4096), (Level.RAID5, 3, 512), (Level.RAID6, 5, 4096)],
)
def test_what_is_written_with_fua_without_a_drive_outlives_the_power(
    level, members, sector_bytes, rebuilds
):
    """It is there with all that it is worked out from. ``rebuilds``: a new drive, most rows of
    which are rebuilt, has it as well. That drive does not come back."""
    pulled, blocks = 0, 32
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(members), sector_bytes=sector_bytes)
            address, sectors = card.buffer(8), 4096 // sector_bytes
            card.pull(pulled)
            for first in range(0, blocks * sectors, 8):
                assert await card.write(volume, first, 8, address, 0, fua=False) == 0
            if rebuilds:
                await rebuild_some(card, volume, pulled)
            for block in range(blocks):
                (place,) = volume.layout.copies_of(block)
                if volume.ports[place.position] == pulled:
                    for sector in range(block * sectors, (block + 1) * sectors, 3):
                        assert await card.write(volume, sector, 1, address, 0, fua=True) == 0
            return volume

        volume = card.run(main())
        card.harness.power_loss()
        for port in volume.ports[1:]:
            card.harness.insert(port)
        checked = 0
        for block in range(blocks):
            (place,) = volume.layout.copies_of(block)
            if volume.ports[place.position] == pulled:
                held = [None, *(card.stored(port, place.row) for port in volume.ports[1:])]
                data = dict(checked_row(volume.layout, 0, place.row, held))
                volume.check(block, data[block], f"row {place.row}")
                checked += 1
        assert checked


@pytest.mark.parametrize("refuses", [False, True])
def test_what_is_written_with_fua_as_its_drive_goes_outlives_the_power(refuses):
    """The drive refuses the blocks, or goes, when their rows have been planned with it."""
    drive = FORGETFUL.changed(latency_ps=60 * MICROSECOND)
    with Card([drive] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> tuple[Volume, list[int]]:
            volume = await card.create(Level.RAID5, range(4))
            for first in range(0, 3 * ROWS, 8):
                assert await card.write(volume, first, 8, card.buffer(8), 0, fua=False) == 0
            first_of_row: dict[int, int] = {}
            for block in range(3 * ROWS):
                (place,) = volume.layout.copies_of(block)
                if place.position == 0:
                    first_of_row.setdefault(place.row, block)
            blocks = [*first_of_row.values()][:16]

            async def write(block: int) -> None:
                assert await card.write(volume, block, 1, card.buffer(1), 0, fua=True) == 0

            async def go() -> None:
                await card.card.transport.sleep(100_000)
                card.pull(volume.ports[0])

            if refuses:
                for row in first_of_row:
                    card.harness.refuse_writes(volume.ports[0], DATA_OFFSET_BLOCKS + row, 1)
            await card.together([*map(write, blocks), *([] if refuses else [go()])])
            return volume, blocks

        volume, blocks = card.run(main())
        card.harness.power_loss(volume.ports[1:])
        for block in blocks:
            row = volume.layout.copies_of(block)[0].row
            held = [None, *(card.stored(port, row) for port in volume.ports[1:])]
            volume.check(block, dict(checked_row(volume.layout, 0, row, held))[block], f"row {row}")


def test_a_port_reset_may_lose_the_cache():
    """As a power-on attention would say: what was not flushed may be gone, the drive goes on."""
    drive = FAST.changed(volatile_cache=True, reset_loses_cache=True)
    with Card([drive] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> int:
            volume = await card.create(Level.JBOD, [2])
            address = card.buffer(16)
            assert await card.write(volume, 0, 8, address, 0, fua=True) == 0
            for block in (8, 16):
                assert await card.write(volume, block, 8, address, 0, fua=False) == 0
            card.harness.drive_fault(2, deaf=True)
            assert await card.read(volume, 0, 8, address) == 0
            assert card.harness.drive_statistics(2)["resets"] == 1
            kept = [
                card.stored(2, row) in volume.model.possible(row) for row in range(24)
            ]
            assert all(kept[:8])
            return sum(kept[8:])

        assert 0 < card.run(main()) < 16


def test_refused_writes_of_a_single_drive():
    """A block that cannot be written ends its command with Write Fault; all others are written."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(Level.JBOD, [1])
            address = card.buffer(8)
            card.harness.refuse_writes(1, DATA_OFFSET_BLOCKS + 5)
            assert await card.write(volume, 0, 4, address, 0, fua=False) == 0
            assert await card.write(volume, 4, 4, address, 0, fua=False) == WRITE_FAULT
            return volume

        volume = card.run(main())
        assert card.harness.drive_statistics(1)["refused"] >= 1
        assert card.stored(1, 5) in volume.model.possible(5)
