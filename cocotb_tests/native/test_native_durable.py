"""What must hold over time on the whole controller: who is inside as an array goes, and trust."""

import os
from contextlib import suppress
from dataclasses import replace

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, WITHOUT_SHARES, Card, Volume
from cocotb_tests.native.native_forgetful import FORGETFUL, ROWS, SLOWER
from cocotb_tests.native.native_jobs import POLL_NS, POLLS, finished, replaced
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.golden.nvme import INTERNAL_ERROR, INVALID_FIELD, SET_FEATURES, WRITE_FAULT
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid
from sw.driver.commands import Command, NvmeError

SEED = int(os.environ.get("SEED") or "1")
VOLATILE_WRITE_CACHE = 6
LATE_NS = 400_000
SLOW = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=400 * MICROSECOND)
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND)


def contents(card: Card, ports: range) -> dict[tuple[int, int], bytes]:
    """What each port has stored in each row."""
    return {(port, row): card.stored(port, row) for port in ports for row in range(ROWS)}


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID5, 4, id="RAID5"),
        pytest.param(Level.RAID10, 5, id="RAID1E", marks=pytest.mark.slow),
        pytest.param(Level.RAID0, 3, id="RAID0", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 6, id="RAID6", marks=pytest.mark.slow),
    ],
)
def test_nothing_lands_in_the_next_array(level, members):
    """An array goes in the middle of writes, and another one takes its place and its drives.

    Nothing of the old one is written any more, and an array beside it goes on.
    """
    drives = [SLOW] * members + [FAST] * (PORTS - members)
    with Card(drives, seed=SEED, config=USUAL) as card:
        old = card.run(card.create(level, range(members)))
        other = card.run(card.create(Level.RAID1, range(6, 8)))
        ended: list[int] = []
        most = 24

        async def access(number: int) -> None:
            blocks = card.random.randint(1, 8)
            first = card.random.randrange(len(old.model) - blocks)
            address = card.buffer(8)
            card.card.transport.memory.write(address, card.random.randbytes(blocks * 4096))
            kind = card.nvme.read if number % 3 == 2 else card.nvme.write
            try:
                await kind(old.namespace, first, blocks, address, number % 2)
                ended.append(0)
            except NvmeError as error:
                ended.append(error.status)

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            for round_number in range(3):
                ended.clear()
                for number in range(most):
                    transport.spawn(access(number))
                await transport.sleep(card.random.choice((5_000, 20_000, 300_000)))
                await raid.delete_volume(nvme, old.namespace)
                await raid.delete_array(nvme, 0)
                await transport.sleep(20_000)
                assert len(ended) == most, "an array has gone before its commands"
                assert (await raid.drives(nvme))[0].array is None
                new = Level.RAID0 if round_number % 2 == 0 else level
                number = await raid.create_array(
                    nvme, new, range(members), strip_kib=16, assume_consistent=True
                )
                assert number == 0
                assert await raid.create_volume(nvme, 0) == old.namespace
                before = contents(card, range(members))
                await card.load(other, 30)
                await transport.sleep(1_000_000)
                now = contents(card, range(members))
                landed = [place for place, stored in before.items() if now[place] != stored]
                assert not landed, "old writes have landed"

        card.run(scenario())
        card.finish(other)


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [20, 60])
def test_nothing_lands_in_the_next_volume(waiting):
    """Commands of an array that hangs have all slots; others wait in the inbox and in the queues
    for them. Their volume is deleted and created again, with other sectors: none of them finds it.
    """
    with Card([FAST] * WITHOUT_SHARES.ports, seed=SEED, config=WITHOUT_SHARES) as card:
        hung = card.run(card.create(Level.RAID0, range(2)))
        old = card.run(card.create(Level.RAID1, range(4, 6)))
        statuses: list[int] = []
        ended = 0

        async def read(number: int) -> None:
            nonlocal ended
            assert await card.read(hung, number % 8, 1, card.buffer(1), number % 2) == 0
            ended += 1

        async def write(number: int) -> None:
            address = card.buffer(1)
            card.card.transport.memory.write(address, card.random.randbytes(4096))
            try:
                await card.nvme.write(old.namespace, number % 16, 1, address, number % 2)
                statuses.append(0)
            except NvmeError as error:
                statuses.append(error.status)

        async def scenario() -> None:
            transport = card.card.transport
            for port in hung.ports:
                card.harness.drive_fault(port, deaf=True)
            for number in range(WITHOUT_SHARES.commands):
                transport.spawn(read(number))
            await transport.sleep(50_000)
            for number in range(waiting):
                transport.spawn(write(number))
            await transport.sleep(50_000)
            await raid.delete_volume(card.nvme, old.namespace)
            number = await raid.create_volume(card.nvme, 1, sector_bytes=512)
            assert number == old.namespace
            assert not ended and not statuses, "nothing hangs"
            before = contents(card, range(4, 6))
            address = card.buffer(1)
            await card.nvme.read(old.namespace, 0, 8, address, 0, 512)
            while len(statuses) < waiting or ended < WITHOUT_SHARES.commands:
                await transport.sleep(100_000)
            assert set(statuses) == {INVALID_FIELD}, statuses
            assert contents(card, range(4, 6)) == before, "old writes have landed"

        card.run(scenario())
        card.finish(hung)


def test_what_is_cached_is_stored():
    """The host switches the volatile write cache off, and all drives lose power: all is there."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:

        async def scenario() -> Volume:
            volume = await card.create(Level.RAID0, range(3))
            await card.load(volume, 60, writes=1.0)
            await card.nvme.admin(Command(SET_FEATURES, dwords=(VOLATILE_WRITE_CACHE, 0)))
            return volume

        volume = card.run(scenario())
        card.harness.power_loss()
        for block in range(len(volume.model)):
            for place in volume.layout.copies_of(block):
                held = card.stored(volume.ports[place.position], place.row)
                assert held in volume.model.possible(block), f"block {block} was lost"


async def switch_off(card: Card) -> int:
    """Switch the volatile write cache off. Returns the status."""
    try:
        await card.nvme.admin(Command(SET_FEATURES, dwords=(VOLATILE_WRITE_CACHE, 0)))
    except NvmeError as error:
        return error.status
    return 0


def _pull(card: Card, ports: int) -> None:
    for port in range(ports):
        card.harness.remove(port)


@pytest.mark.parametrize(
    ("level", "trouble", "status"),
    [
        (Level.RAID0, lambda card: card.harness.drive_fault(0, deaf=True, lasting=True), 0x006),
        (Level.RAID0, lambda card: _pull(card, 1), 0x006),
        (Level.RAID5, lambda card: _pull(card, 2), 0x006),
        (Level.RAID5, lambda card: _pull(card, 1), 0),
    ],
    ids=["hangs", "pulled", "two pulled", "one to spare"],
)
def test_what_is_not_stored_is_told(level, trouble, status):
    """The write cache goes off, when an array has lost drives with what was in their caches."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL, quiet=True) as card:

        async def scenario() -> None:
            volume = await card.create(level, range(4))
            await card.load(volume, 40, writes=1.0)
            trouble(card)
            assert await switch_off(card) == status
            [array] = await raid.arrays(card.nvme)
            assert (array.state == ArrayState.FAILED) == bool(status)

        card.run(scenario())


def test_what_was_forgotten_is_not_stored():
    """A drive that its array needs begins anew. It says that it stores what it is asked to, but the
    host is told otherwise, by whatever asks for it, until a FLUSH has failed for that."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:

        async def scenario() -> None:
            volume = await card.create(Level.RAID0, range(3))
            await card.load(volume, 60, writes=1.0)
            card.harness.restart_drive(volume.ports[1])
            await card.card.transport.sleep(POLL_NS)
            for _ in range(2):  # none of them is the volume's FLUSH
                assert await switch_off(card) == INTERNAL_ERROR
            assert await card.flush(volume) == WRITE_FAULT
            assert await switch_off(card) == 0
            assert await card.flush(volume) == 0

        card.run(scenario())


@pytest.mark.parametrize("fua", [False, True], ids=["cached", "FUA"])
@pytest.mark.parametrize(
    ("level", "members", "restarted"),
    [
        (Level.RAID0, 3, range(2)),
        pytest.param(Level.RAID1, 2, range(2), marks=pytest.mark.slow),
        (Level.RAID5, 4, range(3)),
        pytest.param(Level.RAID6, 5, range(5), marks=pytest.mark.slow),
    ],
    ids=["RAID0", "RAID1", "RAID5", "RAID6"],
)
def test_a_write_that_ends_after_the_host_was_told(level, members, restarted, fua):
    """A write is under way as drives that their array needs begin anew. It has some blocks in their
    caches. The host is told of the loss before that write has ended with success. So the next FLUSH
    must tell of it, too, unless the write was stored by itself."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        harness, sleep = card.harness, card.card.transport.sleep
        ends: list[tuple[str, int]] = []

        async def write(volume: Volume) -> None:
            status = await card.write(volume, 0, 8, card.buffer(8), 0, fua=fua)
            ends.append(("write", status))

        async def restart(volume: Volume) -> None:
            await sleep(LATE_NS / 4)
            for port in restarted:
                harness.restart_drive(port)
            while (status := await card.flush(volume, 1)) == 0:
                await sleep(POLL_NS)
            ends.append(("flush", status))

        async def scenario() -> None:
            volume = await card.create(level, range(members), strip_blocks=1)
            harness.drive_fault(members - 1, 1, at_end=True, delay_ns=LATE_NS)
            await card.together([write(volume), restart(volume)])
            assert ends == [("flush", WRITE_FAULT), ("write", 0)]
            for wanted in (0,) if fua else (WRITE_FAULT, 0):
                status = await card.flush(volume)
                assert status == wanted, f"a flush ends with {status:#x}, not {wanted:#x}"
            if fua:
                await card.read_all(volume)

        card.run(scenario())


def test_a_host_without_volumes_is_told_once():
    """No volume is there whose FLUSH could fail: the host has been told as the cache stays on."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:

        async def scenario() -> None:
            await raid.create_array(card.nvme, Level.RAID0, range(3), strip_kib=4)
            card.harness.restart_drive(1)
            await card.card.transport.sleep(POLL_NS)
            assert await switch_off(card) == INTERNAL_ERROR
            assert await switch_off(card) == 0

        card.run(scenario())


def test_a_rebuilt_drive_has_stored_what_is_trusted():
    """What the host had flushed before is on the new drive, though it loses its power at once."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(5)))

        async def scenario(old: int, new: int, *, migrates: bool) -> None:
            await card.load(volume, 30)
            assert await card.flush(volume) == 0
            if migrates:
                await background.migrate_member(card.nvme, 0, volume.ports.index(old), new)
            else:
                card.pull(old)
                await background.replace_member(card.nvme, 0, volume.ports.index(old), new)
            kind = WalkKind.MIGRATE if migrates else WalkKind.REBUILD
            job = await finished(card)
            assert (job.state, job.kind) == (JobState.DONE, kind), job
            assert job.array_state == ArrayState.OPTIMAL
            replaced(card, volume, old, new)

        for old, new, migrates in ((2, 6, False), (1, 7, True)):
            card.run(scenario(old, new, migrates=migrates))
            # It forgets at random what it has not stored; then all rows are looked at.
            card.harness.remove(new)
            card.finish(volume)
            if not migrates:
                card.harness.insert(new)
                card.run(catch_up(card, volume, new))


async def catch_up(card: Card, volume: Volume, port: int) -> None:
    """The member that was away is taken back."""
    await background.re_add(card.nvme, 0, volume.ports.index(port))
    job = await finished(card)
    assert job.state == JobState.DONE and job.array_state == ArrayState.OPTIMAL, job


RESTARTING = FORGETFUL.changed(reset_loses_cache=True)
"""A drive whose port is reset forgets at random what it has not flushed, and says so."""


async def whole(card: Card) -> None:
    """Returns when the array has its redundancy again."""
    for _ in range(POLLS):
        [array] = await raid.arrays(card.nvme)
        job = await background.job(card.nvme, 0)
        if job.state != JobState.RUNNING and array.state == ArrayState.OPTIMAL:
            return
        await card.card.transport.sleep(POLL_NS)
    raise AssertionError(f"the array is {array.state}: {job}")


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID5, 5, id="RAID5", marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 4, id="RAID10", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 6, id="RAID6", marks=pytest.mark.slow),
    ],
)
def test_a_member_that_forgets_costs_nothing(level, members):
    """Its port is reset amid rows that read and write it. What it forgot is never used: neither
    read by the host, nor taken for its block when a row's parity is made."""
    with Card([RESTARTING] * members, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members)))

        async def again(first: int, blocks: int) -> None:
            """Each block is written again, so that its old contents are asked for."""
            address = card.buffer(1)
            for block in range(first, first + blocks):
                assert await card.write(volume, block, 1, address, 0, fua=False) == 0

        async def scenario() -> None:
            # Each once: a port that is reset twice is given up.
            for port in card.random.sample(volume.ports, members):
                address = card.buffer(8)
                for first in range(0, 48, 8):
                    assert await card.write(volume, first, 8, address, 0, fua=False) == 0
                card.harness.drive_fault(port, deaf=True)
                await card.together(again(first, 16) for first in range(0, 48, 16))
                await card.load(volume, 30)
                assert card.harness.drive_statistics(port)["resets"] == 1
                await whole(card)
                assert await card.flush(volume) == 0
                await card.read_all(volume)
                card.check(volume)

        card.run(scenario())
        card.finish(volume)


def test_what_mirrors_have_given_stays():
    """All drives of mirrors restart. After the host has been told, and has read what is left and
    flushed it, that is what it is, before a RESYNC, in the middle of it, and after; also of blocks
    that the first copy could not give. What is written in between is there as well."""
    members = 3
    blocks = 3 * 16
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID1, range(members)))
        memory = card.card.transport.memory
        address = card.buffer(8)
        held: dict[int, bytes] = {}

        async def look() -> None:
            for block in card.random.sample(range(blocks), blocks):
                await card.nvme.read(volume.namespace, block, 1, address, block % 2)
                data = memory.read(address, 4096)
                assert held.setdefault(block, data) == data, f"block {block} is another one"

        async def write(first: int, count: int) -> None:
            data = card.random.randbytes(count * 4096)
            memory.write(address, data)
            await card.nvme.write(volume.namespace, first, count, address, 0)
            held.update({first + at: data[4096 * at :][:4096] for at in range(count)})

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            await background.set_rate(nvme, 1)
            for first in range(0, blocks, 8):
                await write(first, 8)
            assert await card.flush(volume) == 0
            for first in range(0, blocks, 8):
                await write(first, 8)
            for port in range(members):
                card.harness.restart_drive(port)
            await transport.sleep(20_000)
            assert await card.flush(volume), "nothing is told"
            held.clear()
            stored = [{card.stored(port, row) for port in range(members)} for row in range(blocks)]
            assert sum(len(copies) > 1 for copies in stored) > blocks // 4, "copies are alike"
            for row in card.random.sample(range(blocks), 6):
                card.harness.medium_error(0, DATA_OFFSET_BLOCKS + row)
            await look()
            assert await card.flush(volume) == 0
            for first in card.random.sample(range(0, blocks, 8), 2):
                await write(first, 3)
            await look()
            job = await background.job(nvme, 0)
            assert (job.kind, job.state) == (WalkKind.RESYNC, JobState.RUNNING), job
            while (job := await background.job(nvme, 0)).state == JobState.RUNNING:
                await look()
            assert job.state == JobState.DONE and job.in_sync, job
            await look()
            for row in range(blocks):
                assert len({card.stored(port, row) for port in range(members)}) == 1, row

        card.run(scenario())


@pytest.mark.slow
def test_what_was_read_after_a_restart_stays():
    """A copy cannot be read, and all drives restart before another one is asked, or before that one
    has answered. What the read gives then is what all later ones give, unless it is of before the
    restart. That is so of reads that drives have, and of those that wait for them."""
    members, blocks = 3, 48
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID1, range(members)))
        memory = card.card.transport.memory
        buffers = [card.buffer(8) for _ in range(blocks)]

        async def read(block: int) -> bytes:
            address = buffers[block]
            await card.nvme.read(volume.namespace, block, 1, address, block % 2)
            return memory.read(address, 4096)

        async def write() -> bytes:
            data = card.random.randbytes(blocks * 4096)
            for first in range(0, blocks, 8):
                memory.write(buffers[first], data[4096 * first :][: 8 * 4096])
                await card.nvme.write(volume.namespace, first, 8, buffers[first], 0)
            return data

        async def scenario() -> int:
            transport, others = card.card.transport, 0
            for delay_ns in range(20_000, 24_000, 200):
                await write()
                assert await card.flush(volume) == 0
                before = await write()
                given: dict[int, bytes] = {}

                async def follow(block: int, given=given) -> None:
                    given[block] = await read(block)

                for block in range(blocks):
                    card.harness.medium_error(1, DATA_OFFSET_BLOCKS + block)
                    transport.spawn(follow(block))
                await transport.sleep(delay_ns)
                for port in range(members):
                    card.harness.restart_drive(port)
                while len(given) < blocks:
                    await transport.sleep(POLL_NS)
                assert await card.flush(volume), "nothing is told"
                for block, data in given.items():
                    others += data != before[4096 * block :][:4096]
                    if data != before[4096 * block :][:4096]:
                        assert await read(block) == data, f"{delay_ns} ns: block {block}"
                await whole(card)
                assert await card.flush(volume) == 0
            return others

        assert card.run(scenario()) > 2 * blocks, "few reads are of after a restart"


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID5, 4, id="RAID5"),
        pytest.param(Level.RAID6, 5, id="RAID6", marks=pytest.mark.slow),
    ],
)
def test_what_no_drive_has_lost_is_read(level, members, stalls):
    """All drives restart, and rows that were being written are torn. Blocks of them that nobody has
    written are on their drives, and are what the host reads, although its reads were aborted. So it
    is if the drives had not answered for a while, and it was tried to do without them."""
    stripes = 32
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members)))
        data = volume.layout.data
        strip = volume.layout.strip_blocks
        memory = card.card.transport.memory
        buffers = [card.buffer(1) for _ in range(stripes)]
        left: list[int] = []

        async def write(block: int, byte: int) -> None:
            memory.write(buffers[0], bytes([byte]) * 4096)
            await card.nvme.write(volume.namespace, block, 1, buffers[0], 0)

        async def read(number: int, block: int) -> None:
            await card.nvme.read(volume.namespace, block, 1, buffers[number], number % 2)
            assert memory.read(buffers[number], 4096) == bytes([block & 0xFF]) * 4096, block
            left.remove(number)

        def blocks(strip_number: int) -> list[int]:
            """One strip's blocks of the first stripes."""
            rows = range(stripes)
            return [(r // strip * data + strip_number) * strip + r % strip for r in rows]

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            await background.set_rate(nvme, 1)
            for strip_number in range(data):
                for block in blocks(strip_number):
                    await write(block, block & 0xFF)
            assert await card.flush(volume) == 0
            for block in blocks(0):
                await write(block, card.random.randrange(256))
            left.extend(range(stripes))
            reads = [read(number, block) for number, block in enumerate(blocks(1))]
            for port in range(members if stalls else 0):
                card.harness.drive_fault(port)
            for one in reads:
                transport.spawn(one)
            await transport.sleep(2_000_000 if stalls else 10_000)
            for port in range(members):
                card.harness.drive_fault(port, 0)
                card.harness.restart_drive(port)
            for _ in range(POLLS):
                if not left:
                    break
                await transport.sleep(POLL_NS)
            assert not left, f"reads {left} have not ended"

        card.run(scenario())


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID1, 2, id="RAID1"),
        pytest.param(Level.RAID5, 4, id="RAID5"),
    ],
)
def test_reads_outlast_a_drive_that_hangs_after_a_restart(level, members):
    """All drives restart, and one of them hangs from then on. Once it has been given up its blocks
    are had from the others, whatever its reads have been through before."""
    reads = 24
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members)))
        memory = card.card.transport.memory
        buffers = [card.buffer(1) for _ in range(reads)]
        blocks = range(len(volume.model) - reads, len(volume.model))
        statuses: dict[int, int] = {}

        async def read(block: int, address: int) -> None:
            statuses[block] = 0
            try:
                await card.nvme.read(volume.namespace, block, 1, address, 0)
            except NvmeError as error:
                statuses[block] = error.status
            else:
                assert memory.read(address, 4096) == bytes([block & 0xFF]) * 4096, block
            left.remove(block)

        async def write(block: int) -> None:
            memory.write(buffers[0], bytes([block & 0xFF]) * 4096)
            await card.nvme.write(volume.namespace, block, 1, buffers[0], 0)

        left = [*blocks]

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            await background.set_rate(nvme, 1)
            for block in blocks:
                await write(block)
            assert await card.flush(volume) == 0
            for block in range(reads):
                await write(block)
            for block, address in zip(blocks, buffers, strict=True):
                transport.spawn(read(block, address))
            await transport.sleep(9_000)
            for port in range(members):
                card.harness.restart_drive(port)
            card.harness.drive_fault(0, lasting=True)
            for _ in range(POLLS):
                if not left:
                    break
                await transport.sleep(POLL_NS)
            (array,) = await raid.arrays(nvme)
            assert array.state == ArrayState.DEGRADED
            assert set(statuses.values()) == {0}, statuses

        card.run(scenario())


async def rows_over_a_restart(card: Card, volume: Volume, *, wait: int) -> int:
    """Rows that are whole after two of three drives have restarted in the middle of a PATROL that
    works out what the third cannot read."""
    nvme, transport = card.nvme, card.card.transport
    memory, address = transport.memory, card.buffer(1)
    rows: dict[int, dict[int, int]] = {}
    for block in range(128):
        place = volume.layout.copies_of(block)[0]
        rows.setdefault(place.row, {})[place.position] = block
    chosen = [row for row, held in rows.items() if {0, 1} <= held.keys()]

    async def write(block: int, byte: int) -> None:
        memory.write(address, bytes([byte]) * 4096)
        await nvme.write(volume.namespace, block, 1, address, 0)

    def held(port: int, row: int) -> int:
        return card.stored(port, row)[0]

    for block in range(128):
        await write(block, block)
    assert await card.flush(volume) == 0
    for row in chosen:
        await write(rows[row][1], 200)
    for row in chosen:
        card.harness.medium_error(0, DATA_OFFSET_BLOCKS + row)
    await background.set_rate(nvme, 100)
    await background.start_job(nvme, volume.array, WalkKind.PATROL)
    await transport.sleep(wait)
    for port in (1, 2):
        card.harness.restart_drive(port)
    await transport.sleep(100)
    whole = [row for row in chosen if held(1, row) ^ held(2, row) == rows[row][0]]
    await transport.sleep(1_500_000)
    for row in whole:
        await nvme.read(volume.namespace, rows[row][0], 1, address, 0)
        assert memory.read(address, 1)[0] == rows[row][0], f"row {row}, after {wait} ns"
    return len(whole)


def test_a_walk_works_nothing_out_of_two_times():
    """What it has read before drives restarted, and after that."""
    whole = 0
    for wait in range(80, 320, 80):
        kind = replace(SLOWER, capacity=DATA_OFFSET_BLOCKS + 64)
        late = replace(kind, latency_ps=60 * MICROSECOND)
        with Card([kind, kind, late, *[kind] * 5], seed=wait, config=USUAL) as card:
            volume = card.run(card.create(Level.RAID5, range(3), strip_blocks=1))
            whole += card.run(rows_over_a_restart(card, volume, wait=1000 * wait))
    assert whole


@pytest.mark.parametrize("bad", [6, 4])
def test_rows_end_while_a_drive_restarts_all_the_time(bad):
    """A drive of another array, or of this one, that hangs and restarts twice in the time of a read
    holds up no row that can do without it."""
    kind = replace(SLOWER, latency_ps=1_000 * MICROSECOND)
    with Card([kind] * 8, seed=SEED, config=USUAL) as card:
        ended: list[int] = []

        async def flap() -> None:
            while len(ended) < 8:
                card.harness.restart_drive(bad)
                await card.card.transport.sleep(500_000)

        async def write(volume: int, block: int) -> None:
            await card.nvme.write(volume, block, 1, card.buffer(1), 0)
            ended.append(block)

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            array = await raid.create_array(
                nvme, Level.RAID5, range(5), strip_kib=4, assume_consistent=True
            )
            volume = await raid.create_volume(nvme, array)
            await raid.create_array(
                nvme, Level.RAID1, (5, 6), strip_kib=4, assume_consistent=True
            )
            card.harness.drive_fault(bad)
            transport.spawn(flap())
            await transport.sleep(200_000)
            for number in range(8):
                transport.spawn(write(volume, 8 * number))
            await transport.sleep(40_000_000)
            assert len(ended) == 8, f"{len(ended)} of 8 writes have ended"

        card.run(scenario())


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID1, 2, id="RAID1"),
        pytest.param(Level.RAID5, 3, id="RAID5", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("volume_before", [False, True])
def test_a_drive_that_was_kept_stores_what_is_flushed(level, members, volume_before):
    """It restarted as its array could not do without it, and no volume was there to be told, or has
    gone since. What a later volume flushes with success is on it: it may restart once more."""
    kept = 1
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        memory = card.card.transport.memory
        address = card.buffer(1)

        async def flush(namespace: int) -> int:
            try:
                await card.nvme.flush(namespace, 0)
            except NvmeError as error:
                return error.status
            return 0

        async def settled(array: int) -> None:
            await card.card.transport.sleep(2 * POLL_NS)
            for _ in range(POLLS):
                job = await background.job(card.nvme, array)
                if job.state != JobState.RUNNING:
                    break
                await card.card.transport.sleep(POLL_NS)
            assert (job.state, job.array_state) == (JobState.DONE, ArrayState.OPTIMAL), job

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            array = await raid.create_array(
                nvme, level, range(members), strip_kib=4, assume_consistent=True
            )
            volume = await raid.create_volume(nvme, array) if volume_before else None
            card.harness.remove(0)
            await transport.sleep(POLL_NS)
            card.harness.restart_drive(kept)
            await transport.sleep(POLL_NS)
            if volume is not None:
                await raid.delete_volume(nvme, volume)
            card.harness.insert(0)
            await transport.sleep(POLL_NS)
            with suppress(NvmeError):
                await background.stop_job(nvme, array)
            await background.re_add(nvme, array, 0)
            await settled(array)
            volume = await raid.create_volume(nvme, array)
            for block in range(48):
                memory.write(address, bytes([block + 1]) * 4096)
                await nvme.write(volume, block, 1, address, 0)
            statuses = [await flush(volume) for _ in range(2)]
            assert statuses[1] == 0, statuses
            for port in range(members):
                assert not card.harness.drive_statistics(port)["unflushed"], port
            card.harness.restart_drive(kept)
            await settled(array)
            for block in range(48):
                await nvme.read(volume, block, 1, address, 0)
                assert memory.read(address, 4096) == bytes([block + 1]) * 4096, block

        card.run(scenario())
