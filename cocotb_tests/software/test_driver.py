"""The host driver against a functional card in plain Python, and its event loop."""

import pickle
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocotb_tests.software.driver_bench import (
    DEPTH,
    MEMORY_BASE,
    MEMORY_BYTES,
    PAIRS,
    Bench,
    pattern,
)
from hdl.flow.geometry import Level
from sim.golden import nvme as golden
from sim.golden.card import HostError
from sw.driver import raid
from sw.driver.commands import (
    BLOCK_BYTES,
    NAMES,
    SQE_BYTES,
    Command,
    Completion,
    Io,
    NvmeError,
    Register,
    read_write,
)
from sw.driver.loop import Loop
from sw.driver.native import BufferMemory
from sw.driver.queue import (
    MOST_TRANSFER_PAGES,
    RELEASED_ENTRY,
    QueuePair,
    QueueStoppedError,
)
from sw.driver.transport import PAGE_BYTES


@pytest.mark.parametrize(
    ("level", "ports", "spans", "message"),
    [
        (Level.RAID0, 1, 1, "RAID0 takes 2 drives a span or more, not 1"),
        (Level.RAID5, 2, 1, "RAID5 takes 3 drives a span or more, not 2"),
        (Level.RAID6, 6, 2, "RAID6 takes 4 drives a span or more, not 3"),
        (Level.JBOD, 2, 1, "JBOD takes one drive, not 2"),
    ],
)
def test_too_few_drives_are_named(level, ports, spans, message):
    """The card refuses; the error says what the level takes."""

    class Refusing:
        """Refuses everything."""

        async def admin(self, command: Command, what: str, hints: dict) -> Completion:
            raise NvmeError(what, Completion(0, 0, 0, 0, 0, 2, 0, True), hints.get(2))

    card: Any = Refusing()
    create = raid.create_array(card, level, range(ports), spans=spans)
    with pytest.raises(NvmeError, match=message):
        create.send(None)


def test_start():
    bench = Bench(transfer_shift=5).start(pairs=5, depth=1024)
    identity = bench.nvme.identity
    assert identity is not None
    assert (identity.vendor, identity.serial, identity.model) == (0x1234, "SERIAL", "GOLDEN CARD")
    assert identity.max_transfer_pages == 32
    assert identity.volatile_write_cache
    assert [queue.identifier for queue in bench.nvme.queues] == [1, 2]
    assert [queue.depth for queue in bench.nvme.queues] == [DEPTH, DEPTH]
    size = bench.run(bench.nvme.namespace(1))
    assert (size.blocks, size.block_bytes) == (256, 4096)


def test_start_again():
    """A second start gives new queues that work; the old ones refuse."""
    bench = Bench().start()
    old = bench.nvme.queues[0]
    bench.run(bench.nvme.start(1, DEPTH))
    assert len(bench.nvme.queues) == 1
    bench.run(bench.nvme.flush(1))
    with pytest.raises(QueueStoppedError):
        bench.run(old.submit(Command(Io.FLUSH, 1)))


def test_not_ready():
    bench = Bench()
    bench.harness.mmio_read32 = lambda offset: 0
    with pytest.raises(TimeoutError, match=r"CSTS\.RDY did not become 1 in 0\.01 s"):
        bench.start()


@pytest.mark.parametrize("units", [1, 3, 255])
def test_waits_as_long_as_the_card_may_take(units):
    """CAP.TO; RDY is asked for all the time, but not so often that nothing else gets done."""
    bench = Bench()
    asked: list[float] = []

    def read(offset: int) -> int:
        if offset == Register.CSTS:
            asked.append(bench.harness.now_ns)
        return units << 24 if offset == Register.CAP else 0

    bench.harness.mmio_read32 = read
    began = bench.harness.now_ns
    with pytest.raises(TimeoutError, match=f"in {units / 2:g} s"):
        bench.start()
    waited = bench.harness.now_ns - began
    assert 0.5e9 * units <= waited <= 0.5e9 * units * 1.11
    assert len(asked) < 20_000
    assert max(b - a for a, b in pairwise(asked)) <= min(0.1 * waited, 0.1e9) + 1e3


def test_a_card_that_does_not_stop():
    """Who waits for a command gets an exception all the same."""
    bench = Bench().start()
    bench.card.step = lambda: False
    stopped = []

    async def waits() -> None:
        with pytest.raises(QueueStoppedError):
            await bench.nvme.flush(1)
        stopped.append(True)

    async def main() -> None:
        bench.transport.spawn(waits())
        await bench.transport.sleep(1000)
        bench.harness.mmio_read32 = lambda offset: 1
        with pytest.raises(TimeoutError, match=r"CSTS\.RDY did not become 0"):
            await bench.nvme.stop()
        await bench.transport.sleep(1000)

    bench.run(main())
    assert stopped and not bench.nvme.queues


@pytest.mark.parametrize("abrupt", [False, True])
def test_shut_down(abrupt):
    bench = Bench().start()
    bench.run(bench.nvme.shut_down(abrupt=abrupt))
    assert bench.card.read32(Register.CC) >> 14 & 3 == 1 + abrupt
    bench.start()
    bench.run(bench.nvme.flush(1))


def test_a_shutdown_that_does_not_end():
    """The card may take as long as it says in RTD3E."""
    bench = Bench().start()
    assert bench.nvme.identity
    bench.nvme.identity = replace(bench.nvme.identity, shutdown_us=2_000_000)
    bench.harness.mmio_read32 = lambda offset: 1
    with pytest.raises(TimeoutError, match=r"CSTS\.SHST did not become 2 in 2 s"):
        bench.run(bench.nvme.shut_down())


def test_fatal():
    bench = Bench()
    bench.card.fatal = True
    with pytest.raises(RuntimeError, match="fatal"):
        bench.start()


def test_not_started():
    bench = Bench()
    for begin in (lambda n: n.identify(1), lambda n: n.flush(1), lambda n: n.shut_down()):
        with pytest.raises(RuntimeError, match="call start"):
            bench.run(begin(bench.nvme))


# Queues


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_queues_wrap_and_fill(seed):
    """Many more commands than entries, many more at once than fit; every one ends with its data."""
    bench = Bench(seed=seed).start()
    count = 64

    async def access(number: int) -> None:
        """Some of the accesses need PRP lists, several at once."""
        first, blocks = 4 * number, 1 + number % 4
        length = blocks * BLOCK_BYTES
        data = b"".join(pattern(first + n) for n in range(blocks))
        address = bench.memory.allocate(length)
        bench.memory.write(address, data)
        await bench.nvme.write(1, first, blocks, address, number // 4 % PAIRS)
        bench.memory.write(address, bytes(length))
        await bench.nvme.read(1, first, blocks, address, (number // 4 + 1) % PAIRS)
        assert bench.memory.read(address, length) == data

    bench.run(bench.together([access(number) for number in range(count)]))
    assert bench.card.most_inside == DEPTH - 1, "a queue was full, and never overfull"
    assert bench.card.wraps == 2 * count // DEPTH
    assert all(queue.outstanding == 0 for queue in bench.nvme.queues)
    assert not bench.card.pending
    for number, queue in bench.card.queues.items():
        assert queue.cq_head == queue.cq_tail, f"completions of queue {number} were not taken"


def test_smallest_queue():
    """A queue of two entries has room for one command."""
    bench = Bench().start(depth=2)

    async def flush() -> None:
        await bench.nvme.flush(1)

    bench.run(bench.together([flush() for _ in range(9)]))
    assert bench.card.most_inside == 1


def test_admin_pages_at_once():
    """Identify pages of commands that run together do not mix."""
    bench = Bench().start()

    async def one(structure: int) -> None:
        page = await bench.nvme.identify(structure, 1)
        assert bool(page[24]) == (structure == 1)

    bench.run(bench.together([one(number % 2) for number in range(12)]))


def test_stop_ends_waiters():
    bench = Bench().start()
    failures: list[str] = []

    async def flush() -> None:
        try:
            await bench.nvme.flush(1)
        except QueueStoppedError as error:
            failures.append(str(error))

    async def main() -> None:
        for _ in range(DEPTH + 2):
            bench.transport.spawn(flush())
        # The card has every command, but no time to carry one out.
        await bench.transport.sleep(0)
        queue = bench.nvme.queues[0]
        assert (queue.outstanding, queue.room) == (DEPTH - 1, 0)
        await bench.nvme.stop()
        await bench.transport.sleep(1)
        assert queue.outstanding == 0

    bench.run(main())
    assert len(failures) == DEPTH + 2
    assert bench.nvme.queues == []


def test_unknown_completion():
    bench = Bench().start()

    async def main() -> None:
        bench.card.complete(1, 5, golden.SUCCESS)
        await bench.nvme.flush(1)

    with pytest.raises(RuntimeError, match="completion for command 5, which is not outstanding"):
        bench.run(main())


def test_completion_of_another_queue():
    bench = Bench().start()
    entry = Completion(0, 0, 2, 0, 1, 0, 0, False)
    with pytest.raises(RuntimeError, match="queue 1: completion for a command of queue 2"):
        bench.nvme.queues[0]._take(entry)


def test_released_slots_are_overwritten():
    """NVMe 1.4, 4.6: what the card has released holds no command any more, the rest does."""
    bench = Bench().start()
    queue = bench.nvme.queues[0]

    def held() -> list[bool]:
        slots = range(queue.sq_address, queue.sq_address + DEPTH * SQE_BYTES, SQE_BYTES)
        return [bench.memory.read(slot, SQE_BYTES) != RELEASED_ENTRY for slot in slots]

    async def main() -> None:
        for number in range(2 * DEPTH + 3):
            await bench.nvme.flush(1)
            slot = number % DEPTH
            assert not any(held()[: slot + 1]), f"slot {slot} is still that of a command"
            assert number >= DEPTH or held()[slot + 1 :] == [True] * (DEPTH - slot - 1)
        for _ in range(3):
            bench.transport.spawn(bench.nvme.flush(1))
        await bench.transport.sleep(0)
        assert [slot for slot, command in enumerate(held()) if command] == [3, 4, 5]

    bench.run(main())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (3, "queue 1: the card reports head 3 after 1, but the tail is 2 of 8"),
        (0, "queue 1: the card reports head 0 after 1, but the tail is 2 of 8"),
        (DEPTH + 1, "queue 1: the card reports head 9 after 1, but the tail is 2 of 8"),
        (1, "queue 1: command 1 has ended, but head 1 does not cover its entry"),
    ],
    ids=["past the tail", "backwards", "no slot", "behind"],
)
def test_heads_that_cannot_be(head, message):
    """SQHD moves within what has been submitted, and covers the command that has ended."""
    bench = Bench().start()
    queue = bench.nvme.queues[0]

    async def main() -> None:
        await bench.nvme.flush(1)
        bench.transport.spawn(bench.nvme.flush(1))
        await bench.transport.sleep(0)
        (identifier,) = queue.commands
        queue._take(Completion(0, head, 1, identifier, 1, 0, 0, False))

    with pytest.raises(RuntimeError, match=message):
        bench.run(main())


def test_lost_command():
    """A card that never completes is noticed, not waited for."""
    bench = Bench().start()
    bench.card.step = lambda: False
    with pytest.raises(RuntimeError, match="a command is lost"):
        bench.run(bench.nvme.flush(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: QueuePair(b.transport, 1, 1), "depth must be at least 2, not 1"),
        (lambda b: QueuePair(b.transport, 1, 8, 513), r"transfer_pages must be 0\.\.512, not 513"),
        (lambda b: b.run(b.nvme.start(0)), "queue_pairs must be at least 1, not 0"),
        (lambda b: b.run(b.nvme.read(1, 0, 1, MEMORY_BASE + 2)), "multiple of 4"),
        (lambda b: b.run(b.nvme.read(1, 0, 0, MEMORY_BASE)), r"blocks must be 1\.\.65536, not 0"),
        (lambda b: b.run(b.nvme.read(1, 0, 65537, MEMORY_BASE)), r"1\.\.65536, not 65537"),
        (lambda b: b.run(b.nvme.read(1, -1, 1, MEMORY_BASE)), "block must be a 64-bit number"),
        (
            lambda b: b.run(b.nvme.read(1, 0, 20, MEMORY_BASE)),
            "are 20 pages; a command of this queue takes 8",
        ),
        (lambda b: b.run(b.nvme.read(1, 0, 1, MEMORY_BASE, block_bytes=1000)), "4096 or 512"),
        (lambda b: b.run(b.nvme.read(1, 0, 1, MEMORY_BASE, 2)), r"queue must be 0\.\.1, not 2"),
        (lambda b: b.run(b.nvme.renew_queue(-1)), r"queue must be 0\.\.1, not -1"),
        (lambda b: b.run(b.nvme.abort(0, 1 << 16)), r"identifier must be 0\.\.65535, not 65536"),
        (lambda b: b.run(b.nvme.start(1, 1)), "depth must be at least 2, not 1"),
        (lambda b: b.memory.read(MEMORY_BASE - 1, 1), "outside host memory"),
        (lambda b: b.memory.write(MEMORY_BASE + MEMORY_BYTES, b"x"), "outside host memory"),
    ],
)
def test_bad_arguments(make: Callable[[Bench], Any], message: str):
    """They are refused, and cost no command identifier."""
    bench = Bench().start()
    for _ in range(DEPTH):
        with pytest.raises(ValueError, match=message):
            make(bench)
    if bench.nvme.queues:
        bench.run(bench.nvme.flush(1))


def test_memory_runs_out():
    memory = BufferMemory(memoryview(bytearray(3 * PAGE_BYTES)), 0x1001)
    assert memory.allocate(10) == 0x2000
    assert memory.allocate(1, align=64) == 0x2040
    assert memory.allocate(PAGE_BYTES) == 0x3000
    with pytest.raises(MemoryError, match="12288 bytes is used up"):
        memory.allocate(2)


# Commands


@settings(max_examples=60, deadline=None)
@given(
    offset=st.integers(0, PAGE_BYTES // 4 - 1),
    blocks=st.integers(1, 8),
    first=st.integers(0, 248),
    order=st.integers(0, 1 << 30),
)
def test_data_at_any_address(offset, blocks, first, order):
    """PRPs, lists among them, of any transfer: the right bytes move, and no others."""
    bench = Bench(seed=order).start()
    data = random.Random(order).randbytes(blocks * BLOCK_BYTES)
    area = bench.memory.allocate((blocks + 2) * PAGE_BYTES)
    address = area + 4 * offset
    bench.memory.write(address, data)
    bench.run(bench.nvme.write(1, first, blocks, address))
    for n in range(blocks):
        start = n * BLOCK_BYTES
        assert bench.card.storage[first + n] == data[start : start + BLOCK_BYTES]
    guard = b"\xa5" * (blocks + 2) * PAGE_BYTES
    bench.memory.write(area, guard)
    bench.run(bench.nvme.read(1, first, blocks, address))
    after = bench.memory.read(area, len(guard))
    begin = address - area
    assert after[begin : begin + len(data)] == data
    assert not (after[:begin] + after[begin + len(data) :]).strip(b"\xa5")


def test_longest_list():
    """A list of a whole page of entries does not leave its page."""
    bench = Bench(transfer_shift=9, blocks=1024).start()
    area = bench.memory.allocate((MOST_TRANSFER_PAGES + 1) * PAGE_BYTES)
    bench.run(bench.nvme.read(1, 0, MOST_TRANSFER_PAGES, area + 4))
    assert len(bench.nvme.queues) == PAIRS


def test_fields_of_a_write():
    command = read_write(Io.WRITE, 3, 0x1_2345_6789, 8, 0x1000, 0x2000, fua=True)
    entry = golden.Sqe(
        opcode=golden.WRITE,
        identifier=7,
        nsid=3,
        prp1=0x1000,
        prp2=0x2000,
        dwords=(0x2345_6789, 1, 7 | 1 << 30),
    )
    assert command.pack(7) == entry.pack()


@given(raw=st.binary(min_size=16, max_size=16))
def test_completion_fields(raw):
    raw = raw[:4] + bytes(4) + raw[8:]
    mine, other = Completion.unpack(raw), golden.Cqe.unpack(raw)
    assert (mine.result, mine.sq_head, mine.sq_identifier) == (
        other.result,
        other.sq_head,
        other.queue,
    )
    assert (mine.identifier, mine.phase) == (other.identifier, other.phase)
    assert mine.status == other.code
    assert mine.ok == (other.code == 0)
    assert mine.do_not_retry == other.do_not_retry


@pytest.mark.parametrize(
    "status",
    [
        golden.LBA_OUT_OF_RANGE,
        golden.UNRECOVERED_READ,
        golden.DRIVE_UNAVAILABLE,
        golden.JOB_RUNNING,
    ],
)
def test_errors_are_raised(status):
    bench = Bench().start()
    bench.card.errors[9] = status
    address = bench.memory.allocate(BLOCK_BYTES)
    with pytest.raises(NvmeError, match="Read of block 9") as caught:
        bench.run(bench.nvme.read(1, 9, 1, address))
    error = caught.value
    assert error.status == status
    assert ("stop the job first" in str(error)) == (status == golden.JOB_RUNNING)
    assert f"{NAMES[status]} ({status:03X}h)" in str(error)
    assert (error.completion.code_type, error.completion.code) == (status >> 8, status & 0xFF)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status) == (str(error), status)
    bench.run(bench.nvme.write(1, 10, 1, address))


def test_refused_by_the_card():
    bench = Bench().start()
    address = bench.memory.allocate(BLOCK_BYTES)
    for call, status in (
        (lambda: bench.nvme.read(1, 256, 1, address), golden.LBA_OUT_OF_RANGE),
        (lambda: bench.nvme.read(2, 0, 1, address), golden.INVALID_NAMESPACE),
        (lambda: bench.nvme.flush(2), golden.INVALID_NAMESPACE),
        (lambda: bench.nvme.identify(0x55), golden.INVALID_FIELD),
        (lambda: raid.delete_array(bench.nvme, 3), golden.INVALID_OPCODE),
    ):
        with pytest.raises(NvmeError) as caught:
            bench.run(call())
        assert caught.value.status == status


def test_the_card_catches_bugs():
    """The functional card refuses what a driver may not do."""
    bench = Bench().start()
    queue = bench.nvme.queues[0]
    command = read_write(Io.READ, 1, 0, 2, MEMORY_BASE, MEMORY_BASE + 0x1004)
    with pytest.raises(HostError, match="has an offset"):
        bench.run(queue.submit(command))
    with pytest.raises(HostError, match="doorbell 8"):
        bench.harness.mmio_write32(golden.DOORBELLS + 8, DEPTH)
    bench.memory.write(queue.sq_address, Command(Io.FLUSH, 1).pack(3) * DEPTH)
    with pytest.raises(HostError, match="command identifier 3 is in use"):
        bench.harness.mmio_write32(golden.DOORBELLS + 8, 3)


# Array management


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strip_kib": 6}, "strip_kib must be a power of two in 4..1024, not 6"),
        ({"strip_kib": 2}, "not 2"),
        ({"strip_kib": 2048}, "not 2048"),
        ({"drives": [0, 32]}, "ports are 0..31, not 32"),
        ({"drives": [1, 1]}, "port 1 is named twice"),
        ({"copies": 33}, "copies must be 0..32, not 33"),
        ({"spans": -1}, "spans must be 0..32, not -1"),
        ({"level": 5}, "level must be a Level, not 5"),
    ],
)
def test_bad_arrays(arguments, message):
    bench = Bench().start()
    arguments = {"level": Level.RAID5, "drives": [0, 1, 2], **arguments}
    with pytest.raises(ValueError, match=message):
        bench.run(raid.create_array(bench.nvme, **arguments))


def test_bad_volumes():
    bench = Bench().start()
    with pytest.raises(ValueError, match=r"blocks must be 0\.\.1099511627775"):
        bench.run(raid.create_volume(bench.nvme, 0, 0, 1 << 40))
    with pytest.raises(ValueError, match=r"start must be 0\.\.1099511627775"):
        bench.run(raid.create_volume(bench.nvme, 0, -1))
    for array in (-1, 256):
        with pytest.raises(ValueError, match=r"array must be 0\.\.255"):
            bench.run(raid.create_volume(bench.nvme, array))
        with pytest.raises(ValueError, match=r"array must be 0\.\.255"):
            bench.run(raid.delete_array(bench.nvme, array))
    for namespace in (0, 1 << 32):
        with pytest.raises(ValueError, match=r"namespace must be 1\.\.4294967295"):
            bench.run(raid.delete_volume(bench.nvme, namespace))


def test_entries_that_cannot_be_packed():
    """They cost no command identifier."""
    bench = Bench().start()
    for _ in range(DEPTH):
        with pytest.raises(struct.error):
            bench.run(bench.nvme.queues[0].submit(Command(Io.FLUSH, 1 << 32)))
    bench.run(bench.nvme.flush(1))


# The event loop


class Clock:
    """A machine in which only time passes; ``coming`` are interrupts as (time, vectors)."""

    def __init__(self, *coming: tuple[float, list[int]], step: float = 0.0):
        self.now_ns = 0.0
        self._coming = sorted(coming)
        self._step = step

    def advance(self, until_ns: float | None) -> list[int]:
        if self._coming and (until_ns is None or self._coming[0][0] <= until_ns):
            self.now_ns, vectors = self._coming.pop(0)
            return vectors
        if until_ns is None:
            raise RuntimeError("nothing will ever happen")
        self.now_ns = max(self.now_ns, until_ns - self._step)
        return []


@given(times=st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_sleepers_wake_in_order(times):
    """By time, and those of the same time in the order in which they fell asleep."""
    clock = Clock()
    loop = Loop(clock)
    woken: list[tuple[float, int]] = []

    async def sleeper(index: int, time: int) -> None:
        await loop.sleep(time)
        woken.append((clock.now_ns, index))

    async def main() -> None:
        for index, time in enumerate(times):
            loop.spawn(sleeper(index, time))
        await loop.sleep(100)

    loop.run(main())
    assert woken == sorted((time, index) for index, time in enumerate(times))


def test_who_waits_is_ended_with_the_loop():
    """Where it waits, and only once; who has ended is left alone."""
    loop = Loop(Clock())
    ended: list[int] = []

    async def waiter(number: int) -> None:
        try:
            await loop.event().wait()
        finally:
            ended.append(number)

    async def main() -> None:
        loop.spawn(waiter(1))
        loop.spawn(loop.sleep(1))
        await loop.sleep(5)

    loop.run(main())
    assert not ended
    loop.close()
    loop.close()
    assert ended == [1]


def test_sleep_between_two_instants():
    """A machine that stops a little early does not keep a sleeper from waking."""
    loop = Loop(Clock(step=0.0005))
    loop.run(loop.sleep(10.0003))


def test_events():
    clock = Clock((5.0, [1, 2]), (9.0, [1]))
    loop = Loop(clock)
    log: list[tuple[float, str]] = []

    async def waiter(name: str, vector: int) -> None:
        event = loop.interrupt(vector)
        await event.wait()
        event.clear()
        log.append((clock.now_ns, name))

    async def main() -> str:
        loop.spawn(waiter("first", 1))
        loop.spawn(waiter("second", 2))
        await loop.sleep(7)
        await waiter("again", 1)
        level = loop.event()
        level.set()
        await level.wait()
        await level.wait()
        return "done"

    assert loop.run(main()) == "done"
    assert log == [(5.0, "first"), (5.0, "second"), (9.0, "again")]
    assert loop.interrupt(1) is loop.interrupt(1)


def test_interrupt_before_anyone_waits():
    loop = Loop(Clock((1.0, [3])))

    async def main() -> None:
        await loop.sleep(2)
        await loop.interrupt(3).wait()

    loop.run(main())


def test_exceptions_propagate():
    """Out of the main coroutine and of any other; afterwards the loop still works."""
    loop = Loop(Clock())

    async def fail() -> None:
        await loop.sleep(3)
        raise KeyError("here")

    async def main() -> None:
        loop.spawn(fail())
        await loop.sleep(10)

    for coroutine in (fail(), main()):
        with pytest.raises(KeyError, match="here"):
            loop.run(coroutine)
    loop.run(loop.sleep(1))


def test_nothing_will_happen():
    loop = Loop(Clock())
    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        loop.run(loop.event().wait())
