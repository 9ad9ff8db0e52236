"""The whole 8-port controller on the native tier: driver, PCIe link, drive models, golden volumes.

The controller is built once per content (about a minute) under ``build/native``.
"""

import os

import pytest

from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_drives import CAPACITY, FAST, ROWS
from hdl.flow.geometry import Level
from sim.card.volume_model import DataError
from sim.golden.layout import (
    DDF,
    DDF_N_CONTINUE,
    DDF_ZERO_RESTART,
    LEFT_ASYMMETRIC,
    PARITY_FIRST,
    PARITY_LAST,
    RIGHT_ASYMMETRIC,
    RIGHT_SYMMETRIC,
    Place,
)
from sim.golden.nvme import (
    ABORT_REQUESTED,
    COMPARE_FAILURE,
    INVALID_FIELD,
    UNRECOVERED_READ,
    VERIFY,
    WRITE_FAULT,
    dataset,
    serial_number,
)
from sim.native.parameters import (
    MICROSECOND,
    NANOSECOND,
    Ideal,
    LinkParameters,
    link_rate,
)
from sw.characterise.measure import Point, measure
from sw.driver import raid
from sw.driver.commands import BLOCK_BYTES, Command, Io, NvmeError, read_write
from sw.driver.queue import QueueStoppedError
from sw.workload.generator import Load
from sw.workload.profiles import PROFILES

SEED = int(os.environ.get("SEED") or "1")
COMMANDS = 150

LEVELS = [
    pytest.param(Level.RAID0, 5, {}, id="RAID0"),
    pytest.param(Level.RAID1, 3, {}, id="RAID1"),
    pytest.param(Level.RAID5, 7, {}, id="RAID5"),
    pytest.param(Level.RAID6, 8, {}, id="RAID6"),
    pytest.param(Level.RAID10, 6, {}, id="RAID10"),
    pytest.param(Level.RAID10, 5, {}, id="RAID1E"),
    pytest.param(Level.RAID5, 8, {"spans": 2}, id="RAID50"),
    pytest.param(Level.RAID6, 8, {"spans": 2}, id="RAID60"),
    *(
        pytest.param(Level.RAID5, 5, {"rotation": rotation}, id=f"RAID5-{rotation}")
        for rotation in (RIGHT_SYMMETRIC, PARITY_LAST)
    ),
    *(
        pytest.param(Level.RAID6, 6, {"rotation": rotation}, id=f"RAID6-{rotation}")
        for rotation in (RIGHT_ASYMMETRIC, DDF[1])
    ),
    pytest.param(
        Level.RAID5,
        5,
        {"rotation": LEFT_ASYMMETRIC},
        id=f"RAID5-{LEFT_ASYMMETRIC}",
        marks=pytest.mark.slow,
    ),
    *(
        pytest.param(
            Level.RAID6, 6, {"rotation": rotation}, id=f"RAID6-{rotation}", marks=pytest.mark.slow
        )
        for rotation in (PARITY_FIRST, DDF[0], DDF[2])
    ),
]


@pytest.mark.parametrize(("level", "drives", "options"), LEVELS)
def test_random_accesses(level, drives, options):
    """Every byte read is right, and the drives hold what the layout and ISA-L say."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(drives), **options)
            await card.load(volume, COMMANDS)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def test_cards_and_volumes_have_names_of_their_own():
    """Two cards differ in all that an operating system tells them by; volumes made again do too."""
    seen: set[object] = set()
    for _ in range(2):
        with Card([FAST] * PORTS, seed=SEED) as card:

            async def main(card: Card) -> list[object]:
                nvme = card.card.nvme
                page = await nvme.identify(1)
                names: list[object] = [page[4:24], page[768:1024]]
                volume = await card.create(Level.RAID1, (0, 1))
                for _ in range(2):
                    names.append((await nvme.identify(0, volume.namespace))[104:120])
                    await raid.delete_volume(nvme, volume.namespace)
                    assert await raid.create_volume(nvme, 0) == volume.namespace
                return names

            names = card.run(main(card))
            assert names[0] == serial_number(card.card.harness.identity).encode()
            assert len({*names}) == len(names) and not seen & {*names}
            seen |= {*names}


def test_volumes_beside_each_other():
    """Two arrays at once keep to their drives."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> tuple[Volume, Volume]:
            first = await card.create(Level.RAID5, (0, 2, 4, 6))
            second = await card.create(Level.RAID10, (1, 3, 5, 7), strip_blocks=1)
            done = card.card.transport.event()

            async def other() -> None:
                await card.load(second, COMMANDS // 2)
                done.set()

            card.card.transport.spawn(other())
            await card.load(first, COMMANDS // 2)
            await done.wait()
            return first, second

        card.finish(*card.run(main()))


def test_compares_and_hints():
    """Compare finds the one bit that differs, beside other load; hints leave all data alone."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def compare(volume: Volume, block: int, blocks: int, address: int) -> int:
            command = read_write(Io.COMPARE, volume.namespace, block, blocks, 0, 0)
            length = blocks * BLOCK_BYTES
            answer = await card.nvme.queues[0].transfer(command, address, length)
            return answer.code_type << 8 | answer.code

        async def main() -> tuple[Volume, Volume]:
            busy = await card.create(Level.RAID5, range(5))
            quiet = await card.create(Level.RAID1, range(5, 8))
            memory, done = card.card.transport.memory, card.card.transport.event()

            async def load() -> None:
                await card.load(busy, COMMANDS // 2)
                done.set()

            card.card.transport.spawn(load())
            most = 16
            address = memory.allocate(most * BLOCK_BYTES)
            for turn in range(40):
                blocks = card.random.randint(1, most)
                block = card.random.randrange(len(quiet.model) - blocks + 1)
                held = [quiet.model.possible(number) for number in range(block, block + blocks)]
                data = bytearray(b"".join(content for (content,) in held))
                if turn % 2:
                    data[card.random.randrange(len(data))] ^= 1 << card.random.randrange(8)
                memory.write(address, bytes(data))
                code = await compare(quiet, block, blocks, address)
                assert code == (COMPARE_FAILURE if turn % 2 else 0), f"turn {turn}: {code:#x}"
                fields, ranges = dataset(quiet.namespace, [(block, blocks)] * blocks)
                memory.write(address, ranges)
                hint = Command(fields["opcode"], fields["nsid"], dwords=fields["dwords"])
                answer = await card.nvme.queues[0].transfer(hint, address, len(ranges))
                assert answer.ok
            await done.wait()
            return busy, quiet

        card.finish(*card.run(main()))


@pytest.mark.parametrize("deaf", [False, True])
def test_queues_are_deleted_and_created_again(deaf):
    """What the card has fetched ends, what it has not is dropped, and the host is told which; the
    new queue begins anew. A host that is deaf learns nothing of either."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        nvme, transport = card.nvme, card.card.transport
        volume = card.run(card.create(Level.RAID5, range(4)))
        ended = {"well": 0, "stopped": 0}

        async def write(block: int, address: int) -> None:
            data = transport.memory.read(address, BLOCK_BYTES)
            write = volume.model.begin_write(block, [data])
            try:
                await nvme.write(volume.namespace, block, 1, address, 0)
            except QueueStoppedError:
                volume.model.end_write(write, done=False)
                ended["stopped"] += 1
            else:
                volume.model.end_write(write)
                ended["well"] += 1

        async def main() -> None:
            blocks = range(len(volume.model))
            for pause_ns in (0, 1_000, 20_000):
                address = card.buffer(1)
                transport.memory.write(address, card.random.randbytes(BLOCK_BYTES))
                for block in blocks:
                    transport.spawn(write(block, address))
                await transport.sleep(pause_ns)
                old = nvme.queues[0]
                await nvme.renew_queue(0, deaf=deaf)
                assert nvme.queues[0] is not old and not old.outstanding
                with pytest.raises(QueueStoppedError):
                    await old.submit(Command(Io.FLUSH, volume.namespace))
                await card.read_all(volume)
            await card.load(volume, COMMANDS)
            assert sum(ended.values()) == 3 * len(blocks) and ended["stopped"]
            assert deaf or ended["well"]

        card.run(main())
        card.finish(volume)


def test_only_commands_that_are_there_are_aborted():
    """What has ended is not; a Verify of several transfers is, and ends first."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        nvme, transport = card.nvme, card.card.transport
        volume = card.run(card.create(Level.RAID5, range(4)))
        queue = nvme.queues[1]
        statuses: list[int] = []

        async def verify() -> None:
            blocks = len(volume.model)
            fields = read_write(Io.READ, volume.namespace, 0, blocks, 0, 0).dwords
            done = await queue.submit(Command(VERIFY, volume.namespace, dwords=fields))
            statuses.append(done.status)

        async def main() -> None:
            assert not await nvme.abort(1, 5)
            for _ in range(10):
                transport.spawn(verify())
                await transport.sleep(card.random.uniform(0, 10_000))
                (identifier,) = queue.commands
                aborted = await nvme.abort(1, identifier)
                await queue.take()
                while queue.outstanding:
                    await transport.sleep(1_000)
                await transport.sleep(1_000)
                assert statuses[-1] == (ABORT_REQUESTED if aborted else 0)
            assert ABORT_REQUESTED in statuses

        card.run(main())
        card.finish(volume)


def test_phases_add_up():
    """Time inside the controller, on the link and at the drive is all the time of a read."""
    reads = 12
    with Card([FAST] * PORTS, seed=SEED) as card:

        def at_drives() -> int:
            statistics = (card.harness.drive_statistics(port) for port in range(PORTS))
            return sum(counts["latency_sum_ps"] for counts in statistics)

        async def main() -> tuple[Volume, float, int]:
            volume = await card.create(Level.RAID5, range(5))
            address = card.card.transport.memory.allocate(BLOCK_BYTES)
            began, before = card.card.transport.now_ns, at_drives()
            for block in range(reads):
                await card.nvme.read(volume.namespace, block, 1, address)
            return volume, card.card.transport.now_ns - began, at_drives() - before

        volume, spent_ns, drive = card.run(main())
        card.finish(volume)
        counted = card.harness.statistics()
        assert counted["reads_timed"] == reads
        parts = ("fetch_ps", "command_ps", "send_ps", "interrupt_ps")
        inside = sum(counted[part] for part in parts)
        link = LinkParameters()
        # Doorbell, entry's request and answer, interrupt; the rest is on the wires.
        flights = reads * (4 * link.propagation_ps + link.memory_read_ps)
        wires = spent_ns * NANOSECOND - inside - drive - flights
        assert 0 < wires < reads * 120 * NANOSECOND, f"{wires / reads / NANOSECOND} ns a read"


@pytest.mark.parametrize(
    ("level", "drives", "lost"),
    [(Level.RAID5, 5, 1), (Level.RAID6, 6, 2), (Level.RAID1, 2, 1), (Level.RAID10, 4, 1)],
    ids=["RAID5", "RAID6", "RAID1", "RAID10"],
)
def test_medium_errors_are_recovered(level, drives, lost):
    """As many unreadable blocks of a row as the level tolerates cost nothing but time."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(drives))
            for block in range(0, len(volume.model), 17):
                places = volume.layout.copies_of(block)[:1]
                if volume.layout.parities:
                    row = places[0].row
                    roles = volume.layout.roles(0, row)
                    others = [type(places[0])(p, row) for p in roles if p != places[0].position]
                    places += card.random.sample(others, lost - 1)
                for place in places:
                    card.spoil(volume, place)
            await card.read_all(volume)
            await card.load(volume, COMMANDS // 2)
            return volume

        volume = card.run(main())
        errors = [card.harness.drive_statistics(port)["errors"] for port in range(drives)]
        assert sum(errors) > 0
        state = card.run(raid.arrays(card.nvme))
        assert not state[0].degraded, "a medium error is not a failed drive"
        card.finish(volume)


@pytest.mark.parametrize("level", [Level.RAID6, Level.RAID1], ids=["RAID6", "RAID1"])
def test_reads_mend_medium_errors(level):
    """A block that a read could not have from its drive is there the next time."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        drives = 6 if level == Level.RAID6 else 2

        def errors() -> int:
            return sum(card.harness.drive_statistics(port)["errors"] for port in range(drives))

        async def main() -> Volume:
            volume = await card.create(level, range(drives))
            await card.read_all(volume)
            for block in (0, 33, min(65, len(volume.model) - 1)):
                for place in volume.layout.copies_of(block)[:1]:
                    card.spoil(volume, place)
            for _ in range(4):
                await card.read_all(volume)
            found = errors()
            assert found, "no block was asked for where it cannot be read"
            for _ in range(4):
                await card.read_all(volume)
            assert errors() == found, "a block was not written anew"
            return volume

        card.finish(card.run(main()))


def test_reads_without_a_drive_mend_medium_errors():
    """Blocks that only a reconstruction reads: what it cannot read is there the next time."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        drives, pulled = 6, 2

        def errors() -> int:
            return sum(card.harness.drive_statistics(port)["errors"] for port in range(drives))

        async def main() -> Volume:
            volume = await card.create(Level.RAID6, range(drives))
            card.pull(pulled)
            await card.read_all(volume)
            spoiled = 0
            for row in range(0, volume.rows, 5):
                *data, parity, _ = volume.layout.roles(0, row)
                if pulled in data:
                    spoiled += 1
                    card.spoil(volume, Place(parity, row))
            for _ in range(2):
                await card.read_all(volume)
            found = errors()
            assert found >= spoiled > 2
            for _ in range(2):
                await card.read_all(volume)
            assert errors() == found, "a block was not written anew"
            return volume

        card.finish(card.run(main()))


def test_medium_error_without_redundancy():
    """RAID 0: the block's read fails with Unrecovered Read, others do not; a write cures it."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(4))
            address = card.buffer(8)
            block = 21
            card.spoil(volume, volume.layout.map(block))
            assert await card.read(volume, block, 1, address) == UNRECOVERED_READ
            assert await card.read(volume, block - 4, 8, address) == UNRECOVERED_READ
            assert await card.read(volume, block + 1, 8, address) == 0
            assert await card.write(volume, block, 1, address, 0, fua=True) == 0
            assert await card.read(volume, block - 4, 8, address) == 0
            return volume

        card.finish(card.run(main()))


@pytest.mark.parametrize(
    ("level", "drives", "pulled"),
    [
        pytest.param(Level.RAID5, 6, (2,), id="RAID5"),
        pytest.param(Level.RAID6, 8, (1, 6), id="RAID6"),
        pytest.param(Level.RAID1, 3, (0, 2), id="RAID1"),
        pytest.param(Level.RAID10, 6, (0, 3), id="RAID10"),
    ],
)
@pytest.mark.parametrize(
    "delay_ns",
    [2_000, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (30_000, 150_000))],
)
def test_pulled_drives(level, drives, pulled, delay_ns):
    """Drives that go away under load: every command completes well, and no data is lost."""
    with Card([FAST] * PORTS, seed=SEED + delay_ns) as card:

        async def pull() -> None:
            for port in pulled:
                await card.card.transport.sleep(delay_ns)
                card.pull(port)

        async def main() -> Volume:
            volume = await card.create(level, range(drives))
            card.card.transport.spawn(pull())
            statuses = await card.load(volume, COMMANDS)
            assert len(statuses) == COMMANDS
            while card.gone != set(pulled):
                await card.card.transport.sleep(delay_ns)
            await card.read_all(volume)
            (array,) = await raid.arrays(card.nvme)
            assert array.degraded and array.missing == len(pulled)
            failed = {member.port for member in array.members if member.failed}
            assert failed == set(pulled)
            await card.load(volume, COMMANDS // 2)
            return volume

        card.finish(card.run(main()))


@pytest.mark.parametrize(
    "rotation",
    [
        pytest.param(LEFT_ASYMMETRIC, marks=pytest.mark.slow),
        pytest.param(DDF_ZERO_RESTART, marks=pytest.mark.slow),
        DDF_N_CONTINUE,
    ],
)
def test_rotations_survive_pulled_drives(rotation):
    """Two drives of a RAID 6 go away under load, whichever roles they have in a row."""
    pulled = (1, 4)
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID6, range(6), rotation=rotation)
            await card.load(volume, COMMANDS // 4)
            for port in pulled:
                card.pull(port)
                await card.load(volume, COMMANDS // 2)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def test_triple_parity_needs_an_engine_for_it():
    """A controller with two syndromes refuses it."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        with pytest.raises(NvmeError) as refusal:
            card.run(raid.create_array(card.nvme, Level.RAIDTP, range(6)))
        assert refusal.value.status == INVALID_FIELD
        assert card.run(raid.arrays(card.nvme)) == []


@pytest.mark.slow
def test_triple_parity_survives_three_drives():
    """A controller with three syndromes: random load, then with one, two and three drives gone."""
    with Card([FAST] * PORTS, seed=SEED, parities=3) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAIDTP, range(PORTS), rotation=RIGHT_ASYMMETRIC)
            await card.load(volume, COMMANDS)
            for port in (6, 0, 3):
                card.pull(port)
                await card.load(volume, COMMANDS // 2)
                await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def test_pulled_drive_without_redundancy():
    """RAID 0 without a drive: what lies on it fails truthfully, every command completes."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(4))
            card.pull(2)
            faults = (0, WRITE_FAULT, UNRECOVERED_READ)
            statuses = await card.load(volume, COMMANDS, allowed=faults)
            assert set(statuses) == set(faults)
            return volume

        card.finish(card.run(main()))


def test_lists():
    """Arrays, volumes and drives as the card reports them, once each."""
    drives = [FAST.changed(capacity=CAPACITY + port) for port in range(PORTS - 1)]
    with Card(drives, seed=SEED) as card:

        async def main() -> None:
            nvme = card.nvme
            assert (await raid.arrays(nvme), await raid.volumes(nvme)) == ([], [])
            quiet = {"assume_consistent": True}
            first = await raid.create_array(nvme, Level.RAID6, (1, 2, 3, 5), strip_kib=16, **quiet)
            second = await raid.create_array(nvme, Level.RAID1, (0, 4), strip_kib=4, **quiet)
            spaces = [
                await raid.create_volume(nvme, first, 0, 40),
                await raid.create_volume(nvme, second),
                await raid.create_volume(nvme, first, 40),
            ]
            card.pull(2)
            arrays = await raid.arrays(nvme)
            assert [array.number for array in arrays] == [first, second]
            assert [array.degraded for array in arrays] == [True, False]
            assert arrays[0].level == Level.RAID6
            assert (arrays[0].width, arrays[0].data, arrays[0].parities) == (4, 2, 2)
            assert arrays[0].strip_blocks == 4 and arrays[0].blocks == 2 * ROWS
            assert [member.port for member in arrays[0].members] == [1, 2, 3, 5]
            assert [member.present for member in arrays[0].members] == [True, False, True, True]
            assert (arrays[1].copies, arrays[1].blocks) == (2, ROWS)
            assert await raid.volumes(nvme) == [
                raid.Volume(spaces[0], first, 0, 40),
                raid.Volume(spaces[1], second, 0, ROWS),
                raid.Volume(spaces[2], first, 40, 2 * ROWS - 40),
            ]
            reported = await raid.drives(nvme)
            assert [drive.port for drive in reported] == list(range(PORTS))
            assert [drive.blocks for drive in reported[:7]] == [d.capacity for d in drives]
            assert [drive.present for drive in reported] == [True] * 2 + [False] + [True] * 4 + [
                False
            ]
            used = [second, first, first, first, second, first, None, None]
            assert [drive.array for drive in reported] == used
            await raid.delete_volume(nvme, spaces[1])
            await raid.delete_array(nvme, second)
            assert [array.number for array in await raid.arrays(nvme)] == [first]

        card.run(main())


@pytest.mark.slow
def test_point_of_a_characterisation():
    """One point from reset to record, twice: the same figures, and what bounds them."""
    load = Load(PROFILES["Streaming"], 16, warm_up_ns=500_000, measure_ns=1_000_000)
    point = Point(
        id="X",
        setup="RAID 5, 4 ideal drives",
        published=None,
        level=Level.RAID5,
        drives=4,
        drive=Ideal(capacity=1 << 16, rate=link_rate(6), latency_ps=10 * MICROSECOND),
        strip_kib=64,
        link=LinkParameters(),
        load=load,
    )
    record = measure(point)
    assert record == measure(point)
    assert record.binds == "drives"
    assert record.mb_s == pytest.approx(record.predicted, rel=0.1)
    assert record.mb_s == pytest.approx(record.io_s / 16)


def test_scoreboard_catches_changed_data():
    """The checks fail on a block that changes behind the controller's back."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID5, range(4))
            place = volume.layout.map(9)
            port = volume.ports[place.position]
            data = bytearray(card.stored(port, place.row))
            data[100] ^= 1
            card.store(port, place.row, bytes(data))
            return volume

        volume = card.run(main())
        with pytest.raises(AssertionError, match="parity is wrong"):
            card.check(volume)
        with pytest.raises(DataError, match="block 9, "):
            card.run(card.read_all(volume))


@pytest.mark.parametrize("drives", [2, 3, 4])
def test_read_follows_the_last_copy(drives):
    """Each drive of a mirror goes away just as it is asked; the last one answers."""
    slow = FAST.changed(latency_ps=20 * MICROSECOND)
    with Card([slow] * drives, seed=SEED) as card:

        def reads() -> list[int]:
            return [card.harness.drive_statistics(port)["reads"] for port in range(drives)]

        async def chase() -> None:
            before = reads()
            while len(card.gone) < drives - 1:
                await card.card.transport.sleep(1_000)
                for port, (then, now) in enumerate(zip(before, reads(), strict=True)):
                    if now > then and port not in card.gone:
                        card.pull(port)

        async def main() -> Volume:
            volume = await card.create(Level.RAID1, range(drives))
            card.card.transport.spawn(chase())
            assert await card.read(volume, 5, 3, card.buffer(3)) == 0
            assert len(card.gone) == drives - 1
            return volume

        card.finish(card.run(main()))
