"""What the native harness holds a card to, and the trouble that it can make, on a stand-in."""

from itertools import pairwise

import pytest

from cocotb_tests.native.native_bench import (
    CYCLE_NS,
    DRIVES,
    GONE,
    MEDIUM_ERROR,
    SIZES,
    bench,
    do,
    random_jobs,
    start,
)
from cocotb_tests.native.native_stand_in import (
    BLOCK,
    BLOCKS,
    BUG,
    HOST_HIGH,
    HOST_LOW,
    JOB,
    JOB_FETCH,
    JOB_FLUSH,
    JOB_READ,
    JOB_SPOIL,
    JOB_WRITE,
    MSI_ADDRESS,
    PORT,
    Bug,
)
from hdl.config import BLOCK_BYTES
from hdl.flow.operation import DriveStatus
from sim.native.harness import Flow, Harness, HarnessError, ReadEnd, field_array
from sim.native.models import Load, bench_read, bench_write, run_load
from sim.native.parameters import MICROSECOND, NANOSECOND, Hdd, Ideal, LinkParameters, Ssd

WORDS = 128
MSIX_TABLE = 0x2000
TABLE_ENTRY = (MSI_ADDRESS, 0, 0, 0)
"""Vector 0: the message of a job on port 0 that ends well; not masked."""

READ_CODES = {
    ReadEnd.UNSUPPORTED: (2, 1, 0),
    ReadEnd.ABORTED: (2, 4, 0),
    ReadEnd.POISONED: (1, 0, 1),
    ReadEnd.TIMEOUT: (9, 0, 0),
    ReadEnd.LOST: (9, 0, 0),
}
"""Error code of the hard block, completion status, poisoned (PG213, requester completion)."""


def link(**changes) -> LinkParameters:
    """A link for the stand-in's long packets."""
    return LinkParameters(**(SIZES | {"check_vectors": False} | changes))


def plant(harness: Harness, bug: Bug) -> None:
    """From now on the stand-in has a bug."""
    harness.mmio_write32(BUG, bug.value)


def read_block(harness: Harness) -> None:
    """A block goes from a drive to the host while RQ is not ready all the time."""
    harness.hold(Flow.RQ_READY, 5_000)
    do(harness, JOB_READ)


def write_block(harness: Harness) -> None:
    """A block goes from the host to a slow drive."""
    do(harness, JOB_WRITE, port=1)


def ask(harness: Harness) -> None:
    """A register is read while CC is not ready."""
    harness.hold(Flow.CC_READY, 1_000)
    harness.mmio_read32(PORT)


@pytest.mark.parametrize(
    ("bug", "use", "message"),
    [
        (Bug.GAP, read_block, "RQ: tvalid falls inside a packet"),
        (Bug.WITHDRAWN, read_block, "RQ: tvalid falls before tready"),
        (Bug.CHANGED, read_block, "RQ: a beat changes before tready"),
        (Bug.KEEP_IN_THE_MIDDLE, read_block, "RQ: tkeep is not full before the end"),
        (Bug.KEEP_AT_THE_END, read_block, "RQ: a packet has 4116 bytes .* says 4112"),
        (Bug.TOO_SHORT, read_block, "RQ: a packet has 4080 bytes .* says 4112"),
        (Bug.DISCONTINUED, read_block, "RQ: a packet is discontinued"),
        (Bug.NO_SNOOP, read_block, "RQ: no snoop"),
        (Bug.RELAXED, read_block, "RQ: relaxed ordering is asked for, but not enabled"),
        (Bug.LONG_MESSAGE, read_block, "RQ: an interrupt message is not one word"),
        (Bug.TAG, ask, "CC: .* answers no request"),
        (Bug.LENGTH, ask, "CC: a packet has 16 bytes .* says 20"),
        (Bug.BYTE_COUNT, ask, "CC: .* byte count 5, not 4"),
        (Bug.LOWER_ADDRESS, ask, "CC: .* lower address 17, not 16"),
        (Bug.STATUS, ask, "CC: .* status 1, not 0"),
        (Bug.REQUESTER, ask, "CC: .* requester 257, not 256"),
        (Bug.TWICE, ask, "CC: .* for the second time"),
        (Bug.REPLY_WITHDRAWN, ask, "CC: tvalid falls before tready"),
        (Bug.DATA_WITHDRAWN, write_block, "drive port: write data is withdrawn"),
        (Bug.DATA_CHANGED, write_block, "drive port: write data changes"),
        (Bug.ASSERTED, ask, "assertion in controller: bug 23 is planted"),
    ],
)
def test_broken_rules_are_errors(bug, use, message):
    """Each broken rule ends the run in its clock cycle; without the bug nothing is said."""
    with bench(link=link()) as harness:
        use(harness)
        plant(harness, bug)

        def use_and_wait() -> None:
            use(harness)
            harness.run(until_ns=harness.now_ns + 10_000)

        with pytest.raises(HarnessError, match=rf"^cycle \d+: {message}"):
            use_and_wait()


def test_tags_above_31_need_extended_tags():
    """One truth: the same pin tells the card and sets the rule."""
    with bench(link=link()) as harness:
        plant(harness, Bug.LONG_TAG)
        assert do(harness, JOB_WRITE) == 0
        harness.set_status("extended_tag", 0)
        plant(harness, Bug.NONE)
        assert do(harness, JOB_WRITE) == 0
        plant(harness, Bug.LONG_TAG)
        with pytest.raises(HarnessError, match="RQ: tag 40 without extended tags"):
            do(harness, JOB_WRITE)


def test_ordering_needs_to_be_enabled():
    """Relaxed ordering is legal where it is enabled."""
    with bench(link=link()) as harness:
        plant(harness, Bug.RELAXED)
        harness.set_status("relaxed_ordering", 1)
        assert do(harness, JOB_READ) == 0


@pytest.mark.parametrize(
    ("name", "job", "message"),
    [
        ("max_payload", JOB_READ, "a write exceeds Max_Payload_Size"),
        ("max_read_request", JOB_WRITE, "a read exceeds Max_Read_Request_Size"),
    ],
)
def test_sizes_are_those_of_the_status(name, job, message):
    """What ``status`` says is what the link allows."""
    with bench(link=link()) as harness:
        assert do(harness, job) == 0
        harness.set_status(name, 4)
        with pytest.raises(HarnessError, match=message):
            do(harness, job)


def test_completions_follow_the_status():
    """Their sizes and boundaries are those of ``status``, and random ones keep to its RCB."""
    with bench(link=link()) as harness:
        fetch(harness, WORDS)
        assert harness.mmio_read32(HOST_HIGH) == 1
        harness.set_status("max_payload", 0)
        fetch(harness, WORDS)
        assert harness.mmio_read32(HOST_HIGH) == WORDS * 4 // 128
    for rcb, most in ((0, 8), (1, 4)):
        with bench(link=link(random_splits=True)) as harness:
            harness.set_status("rcb", rcb)
            counts = set()
            for _ in range(60):
                fetch(harness, WORDS)
                counts.add(harness.mmio_read32(HOST_HIGH))
            assert {1, 2, 3} <= counts <= {*range(1, most + 1)}
    for rcb in (64, 128):
        split = bench_read(LinkParameters(rcb=rcb, random_splits=True), length=512, count=2000)
        assert split.errors == 0
        assert split.completions > 2 * 2000


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bus_master", 0, "a request while bus mastering is off"),
        ("function_reset", 1, "a request during a function level reset"),
    ],
)
def test_requests_when_none_may_leave(name, value, message):
    """A request after bus mastering has ended, or in a function level reset, is an error."""
    with bench(link=link()) as harness:
        assert do(harness, JOB_FLUSH) == 0
        harness.set_status(name, value)
        with pytest.raises(HarnessError, match=message):
            do(harness, JOB_FLUSH)
    with bench(link=link()) as harness:
        harness.set_status(name, value)
        harness.run(until_ns=1000)
        harness.set_status(name, 1 - value)
        assert do(harness, JOB_FLUSH) == 0


def test_what_was_offered_may_leave():
    """A packet that RQ held up when bus mastering ended is no error."""
    with bench(link=link()) as harness:
        harness.hold(Flow.RQ_READY, 50_000)
        start(harness, JOB_FLUSH)
        assert harness.run(until_ns=20_000) == [("time",)]
        harness.set_status("bus_master", 0)
        assert harness.run() == [("interrupt", 0)]


def write_entry(harness: Harness, entry=TABLE_ENTRY) -> None:
    """The host writes vector 0 of the MSI-X table."""
    for index, value in enumerate(entry):
        harness.mmio_write32(MSIX_TABLE + 4 * index, value)
    harness.run(until_ns=harness.now_ns + 1_000)


def test_messages_are_those_of_the_table():
    """A message must be that of an enabled vector that is not masked."""
    enabled = link(check_vectors=True)
    with bench(link=enabled) as harness:
        write_entry(harness)
        assert do(harness, JOB_FLUSH) == 0
    with bench(link=enabled) as harness, pytest.raises(HarnessError, match="of no vector"):
        do(harness, JOB_FLUSH)
    with bench(link=enabled) as harness:
        write_entry(harness)
        with pytest.raises(HarnessError, match="of no vector"):
            do(harness, JOB_FLUSH, port=1)
    for name, value, message in (
        ("msix_enable", 0, "while MSI-X is disabled"),
        ("msix_mask", 1, "while the function is masked"),
        ("function_reset", 1, "during a function level reset"),
    ):
        with bench(link=enabled) as harness:
            write_entry(harness)
            harness.set_status(name, value)
            with pytest.raises(HarnessError, match=message):
                do(harness, JOB_FLUSH)
            assert harness.statistics()["interrupts"] == 0
    with bench(link=enabled) as harness:
        write_entry(harness)
        assert do(harness, JOB_FLUSH) == 0
        write_entry(harness, (*TABLE_ENTRY[:3], 1))
        with pytest.raises(HarnessError, match="of a vector that is masked"):
            do(harness, JOB_FLUSH)
    with bench(link=enabled) as harness:
        # A function level reset masks every vector.
        write_entry(harness)
        harness.set_status("function_reset", 1)
        harness.run(until_ns=harness.now_ns + 1_000)
        harness.set_status("function_reset", 0)
        with pytest.raises(HarnessError, match="of a vector that is masked"):
            do(harness, JOB_FLUSH)


# Trouble


def fetch(harness: Harness, words: int) -> list[tuple]:
    """The stand-in reads words of host memory; the events that end it."""
    address = harness.memory_base
    for register, value in ((BLOCKS, words - 1), (HOST_LOW, address & 0xFFFF_FFFF), (PORT, 0),
                            (JOB, JOB_FETCH)):
        harness.mmio_write32(register, value)
    return harness.run()


def descriptor(harness: Harness) -> tuple[int, int, int]:
    """Error code, status and poisoned of the last completion that the stand-in saw."""
    low, middle = harness.mmio_read32(BLOCK), harness.mmio_read32(BLOCKS)
    return low >> 12 & 0xF, middle >> 11 & 7, middle >> 14 & 1


@pytest.mark.parametrize("end", READ_CODES)
def test_failed_reads(end):
    """A read fails as it was asked to, only that one, at the beginning or in the last part."""
    with bench(link=link(max_payload=128)) as harness:
        for late in (False, True):
            harness.fail_reads(end, late=late)
            before = harness.now_ns
            assert fetch(harness, WORDS) == [("interrupt", 0)]
            assert (harness.now_ns - before > 10e6) == (READ_CODES[end][0] == 9)
            parts = harness.mmio_read32(HOST_HIGH)
            assert parts == (4 if late or end is ReadEnd.POISONED else 1)
            hit = late or end is not ReadEnd.POISONED
            assert descriptor(harness) == (READ_CODES[end] if hit else (0, 0, 0))
            assert fetch(harness, WORDS) == [("interrupt", 0)]
            assert descriptor(harness) == (0, 0, 0)
        assert harness.statistics()["reads_failed"] == 2


def test_failed_reads_of_an_address():
    """Only reads that touch the address fail."""
    with bench(link=link()) as harness:
        harness.fail_reads(ReadEnd.ABORTED, address=harness.memory_base + WORDS * 4, length=4)
        fetch(harness, WORDS)
        assert descriptor(harness) == (0, 0, 0)
        fetch(harness, WORDS + 1)
        assert descriptor(harness) == READ_CODES[ReadEnd.ABORTED]


@pytest.mark.parametrize("end", [ReadEnd.POISONED, ReadEnd.DISCONTINUED])
def test_poisoned_data_is_corrupt(end):
    """Who takes poisoned or discontinued data for good has the wrong data."""
    with bench(link=link()) as harness:
        harness.memory[:BLOCK_BYTES] = bytes(BLOCK_BYTES)
        harness.fail_reads(end)
        assert do(harness, JOB_WRITE) == 0
        assert harness.read_drive(0, 0) == b"\xff" * BLOCK_BYTES


def test_lost_completions():
    """Nothing comes; the hard block, which has the tag so long, says so late in its range."""
    with bench(link=link()) as harness:
        harness.fail_reads(ReadEnd.LOST)
        began = harness.now_ns
        fetch(harness, WORDS)
        assert harness.now_ns - began > 40_000_000
        assert harness.statistics()["reads_failed"] == 1


def test_blocked_writes_hold_up_completions():
    """A register's value waits behind a blocked write, and a read of host memory does too."""
    with bench(link=link()) as harness:
        fetch(harness, 1)
        harness.hold(Flow.POSTED, 30_000)
        start(harness, JOB_FLUSH)
        harness.run(until_ns=harness.now_ns + 5_000)
        before = harness.now_ns
        assert harness.mmio_read32(PORT) == 0
        assert harness.now_ns - before > 20_000
        assert harness.run() == [("interrupt", 0)]


def test_blocked_register_writes_hold_up_completions():
    """A completion of the card's read does not pass a register write without credit."""
    times = []
    for duration in (0, 40_000):
        with bench(link=link()) as harness:
            start(harness, JOB_FETCH)
            harness.run(until_ns=180)
            harness.hold(Flow.REGISTER_WRITES, duration)
            harness.mmio_write32(BLOCK, 5)
            assert harness.run() == [("interrupt", 0)]
            times.append(harness.now_ns)
    assert times[1] - times[0] > 39_000


def test_a_card_that_needs_its_completions_first_stops():
    """With one credit for register writes, to take none before a completion is a deadlock."""
    with bench(link=link(device_posted_headers=1)) as harness:
        harness.hold(Flow.COMPLETIONS, 20_000)
        start(harness, JOB_WRITE)
        for _ in range(3):
            harness.mmio_write32(BUG, 0)
        assert harness.run() == [("idle",)]
        assert harness.drive_statistics(0)["outstanding"] == 1


def test_writes_pass_blocked_reads():
    """Both ways: without credits for reads the writes behind them go on."""
    with bench(link=link()) as harness:
        harness.hold(Flow.REGISTER_READS, 50_000)
        tag = harness.begin_mmio_read(PORT, 4)
        assert do(harness, JOB_FLUSH) == 0
        assert harness.now_ns < 50_000
        assert harness.run() == [("mmio", 0, tag)]
        assert harness.now_ns > 50_000
    with bench(link=link()) as harness:
        harness.hold(Flow.READS, 50_000)
        fetching = harness.now_ns
        start(harness, JOB_FETCH)
        assert harness.run(until_ns=fetching + 10_000) == [("time",)]
        assert harness.statistics()["memory_reads"] == 0
        assert harness.run() == [("interrupt", 0)]
        assert harness.now_ns > 50_000


def test_credits_of_np_req():
    """Register reads wait for the user's credits; writes pass them."""
    gap = 30 * MICROSECOND
    with bench(link=link(np_req_ps=gap)) as harness:
        tags = [harness.begin_mmio_read(PORT, 4) for _ in range(3)]
        times = []
        for tag in tags:
            assert harness.run() == [("mmio", 0, tag)]
            times.append(harness.now_ns)
            if tag == tags[0]:
                assert do(harness, JOB_FLUSH) == 0
                assert harness.now_ns < times[0] + gap / NANOSECOND
        for earlier, later in pairwise(times):
            assert later - earlier == pytest.approx(gap / NANOSECOND, abs=3 * CYCLE_NS)


def test_trouble_changes_no_data():
    """With holds, splits and a ``tready`` that falls at any time, data is right, jumps or not."""
    troubled = link(hold_every=3, hold_ps=4 * MICROSECOND, ready_percent=60, np_req_ps=MICROSECOND,
                    seed=5)
    outcomes = []
    for jumping in (True, False):
        with bench(link=troubled, jumping=jumping) as harness:
            outcomes.append(random_jobs(harness, seed=3, count=16))
            assert harness.statistics()["rq_stall_cycles"] > 1000
    assert outcomes[0] == outcomes[1]
    with bench(link=link()) as harness:
        assert random_jobs(harness, seed=3, count=16)[-1] < outcomes[0][-1]


def test_every_size_of_register_access():
    """Byte enables, byte count and lower address fit each other."""
    with bench() as harness:
        harness.mmio_write32(BLOCK, 0x4433_2211)
        assert [harness.mmio_read(BLOCK + byte, 1) for byte in range(4)] == [0x11, 0x22, 0x33, 0x44]
        assert [harness.mmio_read(BLOCK + byte, 2) for byte in (0, 2)] == [0x2211, 0x4433]
        assert harness.mmio_read64(BLOCK) & 0xFFFF_FFFF == 0x4433_2211


# Drives


def test_fua_and_flushes_are_counted():
    """Commands at the drive, by kind."""
    with bench() as harness:
        do(harness, JOB_WRITE, blocks=2)
        do(harness, JOB_FLUSH)
        counted = harness.drive_statistics(0)
        assert (counted["writes"], counted["fua_writes"], counted["fua_blocks"]) == (1, 0, 0)
        assert (counted["flushes"], harness.drive_statistics(1)["flushes"]) == (1, 0)


def test_refused_writes():
    """A refused block fails its command and keeps what it had; the command's others are written."""
    old, new = b"\x11" * BLOCK_BYTES, b"\x22" * BLOCK_BYTES
    with bench() as harness:
        for port in range(3):
            harness.write_drive(port, 4, old * 4)
            harness.refuse_writes(port, 5, 2)
            harness.memory[: 4 * BLOCK_BYTES] = new * 4
            assert do(harness, JOB_WRITE, port=port, block=4, blocks=4) == MEDIUM_ERROR
            assert harness.read_drive(port, 4, 4) == new + old * 2 + new
            assert do(harness, JOB_WRITE, port=port, block=7) == 0
            counted = harness.drive_statistics(port)
            assert (counted["refused"], counted["errors"]) == (1, 1)
            harness.accept_writes(port, 5, 2)
            assert do(harness, JOB_WRITE, port=port, block=4, blocks=4) == 0
            assert harness.read_drive(port, 4, 4) == new * 4


VOLATILE = Ideal(volatile_cache=True)
ABORTED = DriveStatus.ABORTED.value


def forgotten(seed: int, lose, drive=VOLATILE) -> list[list[bool]]:
    """Which of 24 unflushed blocks each of three drives has after ``lose(harness)``."""
    with bench([drive] * 3, seed=seed) as harness:
        for port in range(3):
            harness.memory[: 24 * BLOCK_BYTES] = b"\x33" * (24 * BLOCK_BYTES)
            assert do(harness, JOB_WRITE, port=port, block=100, blocks=4) == 0
            assert do(harness, JOB_FLUSH, port=port) == 0
            assert do(harness, JOB_WRITE, port=port, blocks=24) == 0
        lose(harness)
        for port in range(3):
            assert harness.read_drive(port, 100, 4) == b"\x33" * (4 * BLOCK_BYTES)
        return [[any(harness.read_drive(port, block)) for block in range(24)] for port in range(3)]


def test_power_loss_of_all_drives():
    """What was flushed stays; of the rest each drive keeps something else, after the run's seed."""

    def lose(harness: Harness) -> None:
        harness.power_loss()
        assert do(harness, JOB_READ, port=1) == GONE

    kept = forgotten(1, lose)
    for blocks in kept:
        assert 0 < sum(blocks) < 24
    assert kept[0] != kept[1] != kept[2] != kept[0]
    assert forgotten(1, lose) == kept
    assert forgotten(2, lose) != kept


@pytest.mark.parametrize("stored", [False, True])
def test_what_is_made_unreadable_is_in_the_cache(stored):
    """A loss of power undoes it for some blocks, unless it was flushed. What is written over it and
    forgotten leaves a block that cannot be read, and not what was there before."""
    blocks = range(24)
    with bench([Ideal(volatile_cache=True)] * 3) as harness:

        def readable() -> list[bool]:
            statuses = [do(harness, JOB_READ, block=block) for block in blocks]
            assert {*statuses} <= {0, MEDIUM_ERROR}
            return [status == 0 for status in statuses]

        def lose_power() -> None:
            harness.power_cycle(0, off_ns=1_000)
            harness.run(until_ns=harness.now_ns + 2_000)

        harness.memory[: len(blocks) * BLOCK_BYTES] = b"\x55" * (len(blocks) * BLOCK_BYTES)
        assert do(harness, JOB_WRITE, blocks=len(blocks)) == 0
        assert do(harness, JOB_FLUSH) == 0
        for block in blocks:
            assert do(harness, JOB_SPOIL, block=block) == 0
        assert not any(readable())
        if not stored:
            lose_power()
            assert 0 < sum(readable()) < len(blocks)
            return
        assert do(harness, JOB_FLUSH) == 0
        lose_power()
        assert not any(readable())
        harness.memory[: len(blocks) * BLOCK_BYTES] = b"\x66" * (len(blocks) * BLOCK_BYTES)
        assert do(harness, JOB_WRITE, blocks=len(blocks)) == 0
        lose_power()
        kept = readable()
        assert 0 < sum(kept) < len(blocks)
        for block in blocks:
            new = harness.read_drive(0, block) == b"\x66" * BLOCK_BYTES
            assert new == kept[block]


def test_power_cycle():
    """A drive that loses power comes back by itself, ends what it had, and has forgotten."""
    with bench([Ideal(volatile_cache=True, latency_ps=50 * MICROSECOND)] * 3) as harness:
        harness.memory[: 24 * BLOCK_BYTES] = b"\x44" * (24 * BLOCK_BYTES)
        assert do(harness, JOB_WRITE, blocks=24) == 0
        start(harness, JOB_READ)
        assert harness.run(until_ns=harness.now_ns + 10_000) == [("time",)]
        harness.power_cycle(0, off_ns=5_000)
        assert harness.run() == [("interrupt", GONE << 8)]
        assert do(harness, JOB_FLUSH) == GONE
        harness.run(until_ns=harness.now_ns + 5_000)
        assert do(harness, JOB_READ) == 0
        kept = [any(harness.read_drive(0, block)) for block in range(24)]
        assert 0 < sum(kept) < 24
        harness.remove(1)
        harness.power_loss(off_ns=5_000)
        harness.run(until_ns=harness.now_ns + 10_000)
        assert [do(harness, JOB_FLUSH, port=port) for port in range(3)] == [0, GONE, 0]


def test_a_drive_begins_anew():
    """What it has ends as aborted; it goes on with what comes later, and has forgotten."""
    for block, job in ((0, JOB_READ), (200, JOB_WRITE)):
        with bench([Ideal(volatile_cache=True, latency_ps=50 * MICROSECOND)] * 3) as harness:
            harness.memory[: 24 * BLOCK_BYTES] = b"\x44" * (24 * BLOCK_BYTES)
            assert do(harness, JOB_WRITE, blocks=24) == 0
            start(harness, job, block=block)
            assert harness.run(until_ns=harness.now_ns + 10_000) == [("time",)]
            harness.restart_drive(0)
            assert harness.run() == [("interrupt", ABORTED << 8)]
            kept = [any(harness.read_drive(0, block)) for block in range(24)]
            assert 0 < sum(kept) < 24
            assert do(harness, JOB_WRITE, block=30) == do(harness, JOB_READ, block=30) == 0
            assert do(harness, JOB_FLUSH) == 0
            harness.restart_drive(0)
            harness.run(until_ns=harness.now_ns + 1000)
            assert any(harness.read_drive(0, 30))
            # Nobody is at a port that is empty.
            harness.remove(1)
            harness.restart_drive(1)
            assert do(harness, JOB_FLUSH, port=1) == GONE


def test_coins_that_are_not_seeded_are_found():
    """Two runs of one seed are the same to the block, of many seeds no two."""
    kept = [forgotten(seed, lambda harness: harness.power_loss([0, 1])) for seed in range(1, 7)]
    for index, one in enumerate(kept):
        assert all(one[2])
        assert one not in kept[:index]


def test_a_blank_drive_is_another_one():
    """It has none of the old one's faults, contents, or blocks that cannot be read or written."""
    with bench([VOLATILE] * 3) as harness:
        assert do(harness, JOB_WRITE, blocks=24) == 0
        harness.write_drive(0, 30, b"\x55" * BLOCK_BYTES)
        harness.medium_error(0, 3)
        harness.refuse_writes(0, 4)
        harness.drive_fault(0, lasting=True)
        harness.remove(0)
        harness.insert(0, blank=True)
        assert harness.written_blocks(0) == []
        assert do(harness, JOB_READ, block=0, blocks=8) == 0
        assert do(harness, JOB_WRITE, block=0, blocks=8) == 0
        assert do(harness, JOB_FLUSH) == 0


# Bad calls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: h.remove(3), "there is no port 3 of 3"),
        (lambda h: h.insert(-1), "there is no port -1 of 3"),
        (lambda h: h.insert(7, blank=True), "there is no port 7 of 3"),
        (lambda h: h.power_loss([3]), "there is no port 3 of 3"),
        (lambda h: h.drive_statistics(3), "there is no port 3"),
        (lambda h: h.drive_statistics(-1), "there is no port -1"),
        (lambda h: h.drive_latencies(40), "there is no port 40 of 3"),
        (lambda h: h.drive_fault(3), "there is no port 3 of 3"),
        (lambda h: h.drive_fault(0, -2), "commands must be -1"),
        (lambda h: h.medium_error(3, 0), "there is no port 3 of 3"),
        (lambda h: h.medium_error(0, -1), "blocks -1 to -1 are not all on a drive of 262144"),
        (lambda h: h.refuse_writes(0, 1 << 18), "are not all on a drive of 262144"),
        (lambda h: h.read_drive(3, 0), "there is no port 3 of 3"),
        (lambda h: h.read_drive(0, (1 << 18) - 1, 2), "are not all on a drive"),
        (lambda h: h.write_drive(9, 0, bytes(4096)), "there is no port 9 of 3"),
        (lambda h: h.written_blocks(-5), "there is no port -5 of 3"),
        (lambda h: h.set_status("max_payloads", 1), "status has no input named max_payloads"),
        (lambda h: h.set_status("max_payload", 6), "max_payload must be 0..5, not 6"),
        (lambda h: h.set_status("bus_master", 2), "bus_master must be 0..1, not 2"),
        (lambda h: h.mmio_read32(2), "4 bytes at offset 2 is not one of"),
        (lambda h: h.mmio_read(0, 3), "3 bytes at offset 0 is not one of"),
        (lambda h: h.mmio_read32(1 << 14), "at offset 16384 is not one of"),
        (lambda h: h.mmio_write32(-4, 0), "at offset -4 is not one of"),
        (lambda h: h.fail_reads(ReadEnd.LOST, 0), "at least one read must fail"),
        (lambda h: h.hold(Flow.READS, -1), "time_ps must be 0"),
    ],
)
def test_bad_calls_are_told(call, message):
    """A call that cannot be is one line; the next one is not told of it."""
    with bench() as harness:
        with pytest.raises(HarnessError, match=message) as found:
            call(harness)
        assert "\n" not in str(found.value)
        assert harness.run(until_ns=100) == [("time",)]
        assert do(harness, JOB_FLUSH) == 0


def test_a_link_reset_cuts_off_what_is_on_its_way():
    """A register that is being read is all ones, one that is written does not change."""
    with bench(link=link()) as harness:
        harness.mmio_write32(BLOCKS, 2)
        assert harness.mmio_read32(BLOCKS) == 2
        harness.mmio_write32(BLOCKS, 3)
        tag = harness.begin_mmio_read(BLOCKS, 4)
        harness.reset_link(100)
        assert harness.run() == [("mmio", (1 << 64) - 1, tag)]
        assert harness.mmio_read32(BLOCKS) == 2
        harness.set_status("link_reset", 1)
        harness.mmio_write32(BLOCKS, 4)
        assert harness.mmio_read32(BLOCKS) == 0xFFFF_FFFF
        harness.set_status("link_reset", 0)
        assert harness.mmio_read32(BLOCKS) == 2
        harness.set_status("bus_master", 1)
        assert do(harness, JOB_WRITE) == 0
        assert do(harness, JOB_READ) == 0


@pytest.mark.parametrize(
    ("running_ns", "message"),
    [(0, "a request while bus mastering is off"), (1_000, "RQ: ")],
    ids=["before", "within"],
)
def test_a_packet_of_before_a_link_reset_is_an_error(running_ns, message):
    """The stand-in takes no notice of the reset, and goes on."""
    with bench(link=link()) as harness:
        start(harness, JOB_READ)
        if running_ns:
            # To the middle of the first packet.
            while not harness.statistics()["rq_stall_cycles"]:
                harness.hold(Flow.RQ_READY, running_ns)
                harness.run(until_ns=harness.now_ns + running_ns / 10)
        else:
            harness.run(until_ns=harness.now_ns + 500)
        harness.reset_link(20)
        with pytest.raises(HarnessError, match=message):
            harness.run(until_ns=harness.now_ns + 100_000)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_command_that_is_late_ends_when_nothing_else_is(at_end):
    """It has begun late, and ends so much later, though the fault is taken back meanwhile."""
    with bench(link=link()) as harness:
        harness.drive_fault(0, at_end=at_end, delay_ns=300_000)
        start(harness, JOB_WRITE)
        harness.run(until_ns=harness.now_ns + 2_000)
        harness.drive_fault(0, 0)
        began = harness.now_ns
        assert harness.run(until_ns=began + 1_000_000)[0][0] == "interrupt"
        assert harness.now_ns - began > 200_000
        assert do(harness, JOB_READ) == 0


def test_use_after_the_end():
    """A harness that is closed says so, whatever it is asked."""
    harness = bench()
    harness.close()
    harness.close()
    for use in (
        harness.run,
        lambda: harness.now_ns,
        lambda: harness.mmio_read32(0),
        lambda: harness.mmio_write32(0, 0),
        lambda: harness.remove(0),
        lambda: harness.insert(0, blank=True),
        lambda: harness.read_drive(0, 0),
        lambda: harness.statistics(),
        lambda: harness.drive_statistics(0),
        lambda: harness.set_status("rcb", 0),
        harness.reset_function,
        harness.reset_link,
        harness.unmap_memory,
    ):
        with pytest.raises(HarnessError, match="the harness is closed"):
            use()


class Odd(Ideal):
    """A drive of a kind that the models do not have."""

    kind = 9


LOAD = {"depth": 1, "read_percent": 100, "blocks": 1, "sequential": False, "first": 0, "range": 8}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bench([Odd()] * 3), HarnessError, "kind must be 0..2, not 9"),
        (lambda: run_load(Odd(), Load(**LOAD)), RuntimeError, "kind must be 0..2, not 9"),
        (lambda: bench([object()] * 3), ValueError, "a drive must be DriveParameters, not object"),
        (lambda: bench(seed=-1), ValueError, "seed must be 0"),
        (lambda: Load(**LOAD | {"depth": 0}), ValueError, "depth must be 1..32, not 0"),
        (lambda: Load(**LOAD | {"depth": 33}), ValueError, "depth must be 1..32, not 33"),
        (lambda: Load(**LOAD | {"blocks": 65}), ValueError, "blocks must be 1..64"),
        (lambda: Load(**LOAD | {"range": 1}), ValueError, "range must be 2"),
        (lambda: Load(**LOAD | {"measure_ps": 0}), ValueError, "measure_ps must be 1"),
        (lambda: Load(**LOAD | {"read_percent": 101}), ValueError, "read_percent must be 0..100"),
        (lambda: run_load(Ideal(capacity=7), Load(**LOAD)), ValueError, "not all on a drive of 7"),
        (lambda: bench_read(LinkParameters(), length=0), RuntimeError, "reads of 0 bytes"),
        (lambda: bench_read(LinkParameters(), length=64, outstanding=300), RuntimeError, "300 at"),
        (lambda: bench_write(LinkParameters(), payload=8192), RuntimeError, "writes of 8192"),
        (lambda: LinkParameters(hold_every=2), ValueError, "go together"),
        (lambda: LinkParameters(ready_percent=0), ValueError, "ready_percent must be 1..100"),
        (lambda: LinkParameters(np_req_ps=-1), ValueError, "np_req_ps must be 0"),
        (lambda: Ideal(reset_loses_cache=True), ValueError, "needs volatile_cache"),
    ],
)
def test_parameters_are_refused(make, error, message):
    """Neither Python nor the models take what they cannot work with."""
    with pytest.raises(error, match=message):
        make()


def test_both_sides_have_the_same_fields():
    """A field that only one side knows is an error, not 0."""

    class Library:
        """Names as the models would tell them."""

        def __init__(self, names: bytes):
            self._names = names

        def striata_fields(self, _: bytes) -> bytes:
            return self._names

    with bench() as harness:
        names = harness._library.striata_fields(b"drive")
    for drive in (Ideal(), Hdd(), Ssd(), *DRIVES):
        assert len(field_array(Library(names), "drive", drive)) == names.count(b",") + 1
    mistyped = names.replace(b"command_ps", b"comand_ps")
    with pytest.raises(ValueError, match="Ideal and the models disagree about comand_ps, comm"):
        field_array(Library(mistyped), "drive", Ideal())
    with pytest.raises(ValueError, match="disagree about dys"):
        field_array(Library(names + b",dys"), "drive", Ssd())
    with pytest.raises(ValueError, match="know no group links"):
        field_array(Library(b""), "links", LinkParameters())
