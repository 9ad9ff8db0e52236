"""The NVMe front end's log pages, asynchronous events and aborts."""

import os
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from cocotb.utils import get_sim_time

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_model import report_word
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import CLOCK_PERIOD_NS, sample
from hdl.flow.host_command import Status
from hdl.flow.manage import ManageStatus
from hdl.nvme.admin import events
from hdl.nvme.front_end import NvmeFrontEnd
from hdl.nvme.pages import health
from hdl.nvme.pages.pages import PageGenerator
from sim.golden import nvme, nvme_logs
from sim.golden.nvme import PAGE

CONFIG = replace(bench_config(), error_log_entries=int(os.environ.get("ENTRIES", "16")))
VOLUME_BLOCKS = 5000
HOUR = 3600 * CONFIG.clock_hz
MINUTE = 60 * CONFIG.clock_hz


async def bench(dut, **options) -> Bench:
    host = Bench(dut, CONFIG, int(os.environ["SEED"]), **options)
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    return host


async def log(host, page: int, length: int, *, at: int = 0, retain: bool = False, **fields):
    """Reads ``length`` bytes of a log page from byte ``at`` on."""
    dwords = length // 4 - 1
    first = page | (dwords & 0xFFFF) << 16 | (nvme_logs.RETAIN if retain else 0)
    return await host.page_of(
        opcode=nvme.GET_LOG, dwords=(first, dwords >> 16, at), length=length, **fields
    )


async def smart(host, **fields) -> nvme_logs.Smart:
    """Reads the SMART log."""
    raw = await log(host, nvme_logs.SMART_LOG, nvme_logs.SMART_BYTES, **fields)
    return nvme_logs.Smart.unpack(raw)


async def error_log(host, **fields) -> bytes:
    """Reads the error log."""
    size = CONFIG.error_log_entries * nvme_logs.ERROR_ENTRY_BYTES
    return await log(host, nvme_logs.ERROR_LOG, size, **fields)


async def configure(host, value: int) -> None:
    """Sets Asynchronous Event Configuration."""
    await host.good(opcode=nvme.SET_FEATURES, dwords=(11, value))


async def request_events(host, count: int) -> list[int]:
    """Places Asynchronous Event Requests."""
    admin = host.queues[0]
    placed = []
    for _ in range(count):
        placed.append(host.place(admin, opcode=nvme.ASYNC_EVENT))
        await host.ring(admin)
    await host.good(opcode=nvme.GET_FEATURES, dwords=(1,))
    return placed


async def event(host, placed: list[int]) -> tuple[int, int, int]:
    """Waits for one of the requests that were placed."""
    admin = host.queues[0]
    for _ in range(20_000):
        for identifier in placed:
            if identifier in admin.done:
                placed.remove(identifier)
                answer = await host.result(admin, identifier)
                assert answer.code == nvme.SUCCESS and not answer.more
                return nvme_logs.event(answer.result)
        await ClockCycles(host.dut.clk, 1)
    raise AssertionError("no event was reported")


async def no_event(host, placed: list[int]) -> None:
    """Checks that nothing is reported."""
    await ClockCycles(host.dut.clk, 500)
    assert not any(identifier in host.queues[0].done for identifier in placed)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def logs_tell_what_happened(dut):
    """Random good and bad commands of both kinds; both logs agree with the model."""
    host = await bench(dut)
    generator = host.random
    await host.create_pair(1, 16)
    model = nvme_logs.Logs(entries=CONFIG.error_log_entries)
    model.check(await smart(host), await error_log(host))
    statuses = {
        Status.UNRECOVERED_READ: nvme.UNRECOVERED_READ,
        Status.WRITE_FAULT: nvme.WRITE_FAULT,
        Status.INTERNAL_ERROR: nvme.INTERNAL_ERROR,
    }

    async def io(opcode, nsid, block, blocks, code, *, reaches, **changes):
        _, prp1, prp2 = host.buffer(blocks)
        fields = nvme.read_write(opcode, nsid, block, blocks) | {"prp1": prp1, "prp2": prp2}
        pair = host.queues[1]
        identifier = host.place(pair, **(fields | changes))
        await host.ring(pair)
        answer = await host.result(pair, identifier)
        assert answer.code == code and answer.more == bool(code)
        if reaches:
            model.io(opcode, blocks, code)
        if code:
            model.error(code, queue=1, identifier=identifier, block=block, nsid=nsid)

    for number in range(20):
        await io(nvme.READ, 1, number, 8, 0, reaches=True)
    assert model.bytes_read > nvme_logs.UNIT_BYTES
    for _ in range(60):
        opcode = generator.choice((nvme.READ, nvme.WRITE))
        blocks = generator.randint(1, 8)
        block = generator.randrange(VOLUME_BLOCKS - 8)
        nsid = generator.choice((1, 3))
        kind = generator.randrange(10)
        if kind < 5:
            await io(opcode, nsid, block, blocks, 0, reaches=True)
        elif kind == 5:
            status = generator.choice(list(statuses))
            host.statuses[nsid - 1, block] = status
            await io(opcode, nsid, block, blocks, statuses[status], reaches=True)
            del host.statuses[nsid - 1, block]
        elif kind == 6:
            code = nvme.LBA_OUT_OF_RANGE
            await io(opcode, nsid, VOLUME_BLOCKS, blocks, code, reaches=True)
            await io(opcode, nsid, 1 << 63 | 5, blocks, code, reaches=False)
        elif kind == 7:
            await io(opcode, 77, block, blocks, nvme.INVALID_NAMESPACE, reaches=False)
        elif kind == 8:
            await io(opcode, nsid, block, 1, nvme.INVALID_PRP_OFFSET, reaches=False, prp1=2)
        else:
            admin = host.queues[0]
            dwords, code = generator.choice(
                (((0x77,), nvme.INVALID_LOG_PAGE), ((1, 0, 2), nvme.INVALID_FIELD))
            )
            nsid = generator.choice((0, 0xFFFF_FFFF))
            identifier = host.place(admin, opcode=nvme.GET_LOG, nsid=nsid, dwords=dwords)
            await host.ring(admin)
            answer = await host.result(admin, identifier)
            assert answer.code == code and answer.more
            model.error(code, queue=0, identifier=identifier, nsid=nsid)
    await host.write32(nvme.DOORBELLS + 0xFF0, 1)
    model.error(nvme.INVALID_FIELD)
    await ClockCycles(dut.clk, 100)
    model.check(await smart(host), await error_log(host))
    assert len(model.errors) > CONFIG.error_log_entries, "the error log has not wrapped"
    # Entries and counters survive a controller reset.
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    model.check(await smart(host), await error_log(host, retain=True))
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def times_and_temperature(dut):
    host = await bench(dut)
    first = await smart(host)
    assert first.power_cycles == 1 and first.spare == 100 and first.spare_threshold < 100
    assert first.kelvin == CONFIG.temperature_kelvin and first.warning == 0
    assert not any((first.busy_minutes, first.power_on_hours, first.unsafe_shutdowns, first.used))
    # Hours pass, across the wrap of the time as well.
    now = 0

    async def pass_time(cycles: int) -> None:
        # Never further than the age at which the controller looks by itself.
        nonlocal now
        while cycles:
            step = min(cycles, 1 << 45)
            now, cycles = now + step, cycles - step
            dut.now.value = now % (1 << 48)
            await ClockCycles(dut.clk, 400)

    await pass_time(5 * HOUR - MINUTE)
    assert (await smart(host)).power_on_hours == 4
    await pass_time(2 * MINUTE)
    assert (await smart(host)).power_on_hours == 5
    await pass_time(395 * HOUR)
    assert now >> 48, "the time has not wrapped"
    assert (await smart(host)).power_on_hours == 400
    # Busy: from the first command that goes in to the last that comes out.
    pair = await host.create_pair(1, 8)
    host.hold = True
    placed = []
    for minutes in (2, 5):
        placed.append(host.place(pair, opcode=nvme.FLUSH, nsid=1))
        await host.ring(pair)
        await ClockCycles(dut.clk, 300)
        await pass_time(minutes * MINUTE)
    assert (await smart(host)).busy_minutes in (6, 7)
    await pass_time(3 * MINUTE)
    host.hold = False
    for identifier in placed:
        await host.result(pair, identifier)
    await pass_time(20 * MINUTE)
    assert (await smart(host)).busy_minutes in (9, 10)
    # Temperature, its warning and its times.
    for kelvin, warning, minutes in (
        (342, 0, 3),
        (343, nvme_logs.WARN_TEMPERATURE, 4),
        (357, nvme_logs.WARN_TEMPERATURE, 2),
        (358, nvme_logs.WARN_TEMPERATURE, 8),
        (300, 0, 9),
    ):
        dut.temperature.value = kelvin
        await ClockCycles(dut.clk, 50)
        await pass_time(minutes * MINUTE)
        found = await smart(host)
        assert found.kelvin == kelvin and found.warning == warning
    assert found.warm_minutes in (5, 6) and found.hot_minutes in (7, 8)
    # Thresholds of the host.
    for value, warning in ((300, 2), (301, 0), (1 << 20 | 299, 0), (1 << 20 | 300, 2)):
        await host.good(opcode=nvme.SET_FEATURES, dwords=(4, value))
        await ClockCycles(dut.clk, 10)
        assert (await smart(host)).warning == warning, hex(value)
    for value in (343, 1 << 20):
        await host.good(opcode=nvme.SET_FEATURES, dwords=(4, value))
    # A failed drive matters when it belongs to an array.
    dut.temperature.value = 0
    dut.drives__failed.value = 0b0110
    await ClockCycles(dut.clk, 10)
    assert (await smart(host)).warning == 0
    dut.drives__used.value = 0b0010
    await ClockCycles(dut.clk, 10)
    found = await smart(host)
    assert found.warning == nvme_logs.WARN_DEGRADED
    assert found.kelvin == CONFIG.temperature_kelvin
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def logs_from_any_offset(dut):
    host = await bench(dut)
    for number in range(CONFIG.error_log_entries + 3):
        await host.bad(nvme.INVALID_OPCODE, opcode=0xFF, nsid=number)
    for volume in range(CONFIG.volumes):
        host.manage_answer = (ManageStatus.DONE, volume)
        if volume != 1:
            await host.good(opcode=nvme.CREATE_VOLUME)
    sizes = {
        nvme_logs.ERROR_LOG: CONFIG.error_log_entries * nvme_logs.ERROR_ENTRY_BYTES,
        nvme_logs.SMART_LOG: 512,
        nvme_logs.FIRMWARE_LOG: 512,
        nvme_logs.ARRAYS_LOG: CONFIG.arrays * nvme_logs.ARRAY_ENTRY_BYTES,
        nvme_logs.DEFECTS_LOG: nvme_logs.FINDINGS * nvme_logs.ARRAY_ENTRY_BYTES,
        nvme_logs.LOST_LOG: nvme_logs.FINDINGS * nvme_logs.ARRAY_ENTRY_BYTES,
        nvme_logs.CHANGED_NAMESPACES_LOG: PAGE,
    }
    generator = host.random
    for page, size in sizes.items():
        whole = await log(host, page, size, retain=True)
        if page >= nvme_logs.ARRAYS_LOG:
            section = (page - nvme_logs.ARRAYS_LOG) << 12
            words = (report_word(section + word) for word in range(size // 4))
            assert whole == b"".join(word.to_bytes(4, "little") for word in words)
        offsets = {0, 4, 64, size - 4, size, *(4 * generator.randrange(size // 4) for _ in "123")}
        for at in offsets:
            length = 4 * generator.randint(1, 64)
            nsid = generator.choice((0, 0xFFFF_FFFF))
            part = await log(host, page, length, at=at, retain=True, nsid=nsid)
            assert part == whole[at : at + length].ljust(length, b"\0"), f"log {page} from {at}"
    assert nvme_logs.namespace_list(whole) == [1, 3, 4]
    assert len(nvme_logs.error_entries(await error_log(host))) == CONFIG.error_log_entries

    async def refused(code, *dwords, **fields):
        await host.bad(code, opcode=nvme.GET_LOG, dwords=dwords, prp1=host.page(), **fields)

    for page, size in sizes.items():
        await refused(nvme.INVALID_FIELD, page, 0, size + 4)
        await refused(nvme.INVALID_FIELD, page, 0, 0, 1)
        await refused(nvme.INVALID_FIELD, page, 0, 6)
        await refused(nvme.INVALID_FIELD, page | 1024 << 16)
        await refused(nvme.INVALID_FIELD, page, 1)
        await refused(nvme.INVALID_FIELD, page, nsid=1)
    for page in (0, 5, 6, 0x0D, 0x80, 0xC3, 0xFF):
        await refused(nvme.INVALID_LOG_PAGE, page)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def events_are_reported_once(dut):
    host = await bench(dut)
    # Nothing is configured: only errors are reported.
    placed = await request_events(host, 3)
    dut.drives__used.value = dut.drives__failed.value = 1
    await host.good(opcode=nvme.CREATE_VOLUME)
    await no_event(host, placed)
    await host.write32(nvme.DOORBELLS + 0xFF0, 1)
    found = await event(host, placed)
    assert found == (nvme_logs.ERROR_EVENT, nvme_logs.INVALID_DOORBELL_REGISTER, 1)
    # Masked until the error log is read, and a read that retains does not count.
    await host.write32(nvme.DOORBELLS, 0xFFFF)
    await no_event(host, placed)
    await error_log(host, retain=True)
    await smart(host)
    await no_event(host, placed)
    await error_log(host)
    await no_event(host, placed)
    for address, value, information in (
        (nvme.DOORBELLS, 0xFFFF, nvme_logs.INVALID_DOORBELL_VALUE),
        (nvme.DOORBELLS, host.queues[0].sq_tail, nvme_logs.INVALID_DOORBELL_VALUE),
        (nvme.DOORBELLS + 4, 7, nvme_logs.INVALID_DOORBELL_VALUE),
        (nvme.DOORBELLS + 8, 0, nvme_logs.INVALID_DOORBELL_REGISTER),
        (nvme.DOORBELLS + 12, 0, nvme_logs.INVALID_DOORBELL_REGISTER),
    ):
        placed += await request_events(host, 1)
        if value == 7:
            value = (host.completions[0].head + 3) % host.completions[0].entries
        if information and address == nvme.DOORBELLS and value != 0xFFFF:
            value = host.queues[0].sq_tail
        await host.write32(address, value)
        found = await event(host, placed)
        assert found == (nvme_logs.ERROR_EVENT, information, nvme_logs.ERROR_LOG), hex(address)
        await error_log(host)
    # The state of an array needs no configuration.
    for _ in range(2):
        placed += await request_events(host, 1)
        dut.arrays__news.value = 1
        await ClockCycles(dut.clk, 1)
        dut.arrays__news.value = 0
        found = await event(host, placed)
        assert found == (nvme_logs.VENDOR_EVENT, 0, nvme_logs.ARRAYS_LOG)
        await log(host, nvme_logs.ARRAYS_LOG, 64)
    # A warning that is there when it is configured, and one that comes.
    await configure(host, nvme_logs.WARN_DEGRADED | nvme_logs.WARN_TEMPERATURE)
    found = await event(host, placed)
    assert found == (nvme_logs.HEALTH_EVENT, nvme_logs.RELIABILITY, nvme_logs.SMART_LOG)
    dut.temperature.value = 400
    await no_event(host, placed)
    # Forgotten when the log is read first; told when it comes after.
    await smart(host)
    dut.temperature.value = 300
    await no_event(host, placed)
    dut.temperature.value = 400
    found = await event(host, placed)
    assert found == (nvme_logs.HEALTH_EVENT, nvme_logs.TEMPERATURE, nvme_logs.SMART_LOG)
    # Namespaces. An event without a request waits for one.
    assert not placed
    await configure(host, nvme_logs.NAMESPACE_NOTICES)
    changed = await log(host, nvme_logs.CHANGED_NAMESPACES_LOG, PAGE)
    assert nvme_logs.namespace_list(changed) == [1]
    host.manage_answer = (ManageStatus.DONE, 2)
    await host.good(opcode=nvme.CREATE_VOLUME)
    await host.good(opcode=nvme.DELETE_VOLUME, dwords=(3,))
    host.manage_answer = (ManageStatus.NO_SPACE, 1)
    await host.bad(nvme.NO_SPACE, opcode=nvme.CREATE_VOLUME)
    placed = await request_events(host, 2)
    found = await event(host, placed)
    assert found == (
        nvme_logs.NOTICE_EVENT, nvme_logs.NAMESPACE_CHANGED, nvme_logs.CHANGED_NAMESPACES_LOG,
    )  # fmt: skip
    await no_event(host, placed)
    changed = await log(host, nvme_logs.CHANGED_NAMESPACES_LOG, PAGE)
    assert nvme_logs.namespace_list(changed) == [3, 4]
    changed = await log(host, nvme_logs.CHANGED_NAMESPACES_LOG, PAGE)
    assert nvme_logs.namespace_list(changed) == []
    await no_event(host, placed)
    # One that changes between two parts of the page, which lists it already, is listed again.
    page = nvme_logs.CHANGED_NAMESPACES_LOG
    host.manage_answer = (ManageStatus.DONE, 2)
    for volume in (2, 3):
        await host.good(opcode=nvme.DELETE_VOLUME, dwords=(volume,))
    assert nvme_logs.namespace_list(await log(host, page, PAGE, retain=True)) == [3, 4]
    await host.good(opcode=nvme.DELETE_VOLUME, dwords=(2,))
    await log(host, page, PAGE // 2, at=PAGE // 2)
    assert nvme_logs.namespace_list(await log(host, page, PAGE)) == [3]
    assert (await event(host, placed))[0] == nvme_logs.NOTICE_EVENT
    host.queues[0].waiting.clear()
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def requests_are_limited_and_aborted(dut):
    host = await bench(dut)
    limit = CONFIG.async_event_limit
    admin = host.queues[0]

    async def abort(identifier: int, queue: int = 0) -> int:
        return await host.good(opcode=nvme.ABORT, dwords=(identifier << 16 | queue,))

    placed = await request_events(host, limit)
    await host.bad(nvme.ASYNC_EVENT_LIMIT, opcode=nvme.ASYNC_EVENT)
    unknown = next(number for number in range(1 << 16) if number not in placed)
    assert await abort(unknown) == 1
    assert await abort(placed[0], queue=1) == 1
    for index in (1, 0, 1):
        identifier = placed.pop(index)
        assert await abort(identifier) == 0
        answer = await host.result(admin, identifier)
        assert answer.code == nvme.ABORT_REQUESTED and answer.result == 0
        assert await abort(identifier) == 1
    # Room again, and requests that are left still work.
    placed += await request_events(host, limit - 1)
    await host.bad(nvme.ASYNC_EVENT_LIMIT, opcode=nvme.ASYNC_EVENT)
    for _ in range(limit):
        await host.write32(nvme.DOORBELLS + 0xFF0, 1)
        assert (await event(host, placed))[0] == nvme_logs.ERROR_EVENT
        await error_log(host)
    assert not placed
    # A controller reset forgets requests and events.
    placed = await request_events(host, limit)
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    placed = await request_events(host, limit)
    await no_event(host, placed)
    host.queues[0].waiting.clear()
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_full_completion_queue_holds_events(dut):
    """An event waits for room in the admin completion queue, and holds up nothing else."""
    host = Bench(dut, CONFIG, int(os.environ["SEED"]))
    host.volumes = {0: {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}}
    await host.reset()
    await host.enable(cq_entries=2)
    await host.create_pair(1, 8)
    placed = await request_events(host, 2)
    host.completions[0].automatic = False
    admin = host.queues[0]
    last = host.place(admin, opcode=nvme.ABORT)
    await host.ring(admin)
    await host.result(admin, last)
    await host.write32(nvme.DOORBELLS + 0xFF0, 1)
    await no_event(host, placed)
    assert not sample(dut.busy)
    for _ in range(5):
        await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.ring_head(0)
    assert (await event(host, placed))[0] == nvme_logs.ERROR_EVENT
    host.completions[0].automatic = True
    await host.ring_head(0)
    admin.waiting.clear()
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def an_overfull_submission_queue_is_refused(dut):
    """A tail that passes entries that have not been fetched is an error event, and is ignored."""
    host = await bench(dut)
    pair = await host.create_pair(1, 8, cq_entries=2)
    host.completions[1].automatic = False
    placed = [host.place(pair, opcode=nvme.FLUSH, nsid=1) for _ in range(5)]
    await host.ring(pair)
    await host.result(pair, placed[0])
    requests = await request_events(host, 4)
    # One entry was fetched and four wait: 6, 7 and 0 are tails that the queue can have.
    for tail in (5, 4, 1):
        await host.write32(nvme.DOORBELLS + 8, tail)
        assert await event(host, requests) == (
            nvme_logs.ERROR_EVENT, nvme_logs.INVALID_DOORBELL_VALUE, nvme_logs.ERROR_LOG,
        ), tail  # fmt: skip
        await error_log(host)
    placed += [host.place(pair, opcode=nvme.FLUSH, nsid=1) for _ in range(2)]
    await host.ring(pair)
    for identifier in placed[1:]:
        await host.ring_head(1)
        assert (await host.result(pair, identifier)).code == nvme.SUCCESS
    await no_event(host, requests)
    await host.ring_head(1)
    host.queues[0].waiting.clear()
    await host.settle()


async def errors_so_far(host) -> nvme_logs.Logs:
    """A model that begins with what earlier tests have left: logs outlive a reset."""
    found = nvme_logs.error_entries(await error_log(host))[::-1]
    count = (await smart(host)).errors
    forgotten = [nvme_logs.ErrorEntry(count=0, code=0)] * (count - len(found))
    return nvme_logs.Logs(entries=CONFIG.error_log_entries, errors=[*forgotten, *found])


async def check_errors(host, model: nvme_logs.Logs) -> None:
    """The error log and its counter are the model's."""
    assert (await smart(host)).errors == len(model.errors)
    newest = model.errors[::-1][: model.entries]
    assert nvme_logs.error_entries(await error_log(host)) == newest


@cocotb.test(timeout_time=16, timeout_unit="ms")
async def the_longest_log_ends(dut):
    """What lies behind the last entry is zeros, wherever a read of the log begins."""
    host = await bench(dut)
    entries = CONFIG.error_log_entries
    size = entries * nvme_logs.ERROR_ENTRY_BYTES
    model = await errors_so_far(host)
    for turn in range(3 * entries):
        admin = host.queues[0]
        identifier = host.place(admin, opcode=nvme.GET_LOG, dwords=(0x77,))
        await host.ring(admin)
        assert (await host.result(admin, identifier)).code == nvme.INVALID_LOG_PAGE
        model.error(nvme.INVALID_LOG_PAGE, queue=0, identifier=identifier, nsid=0)
        if turn % (entries - 1) == 3:
            await check_errors(host, model)
    whole = await error_log(host)
    for at in (4, 64, size // 2, size - 8):
        assert await log(host, nvme_logs.ERROR_LOG, size - at, at=at) == whole[at:]
        found = await log(host, nvme_logs.ERROR_LOG, size, at=at)
        assert found == whole[at:] + bytes(at), f"from byte {at} on"
    await host.settle()


MOST_WAIT = 300
"""Cycles that a command may take beyond what the data path takes, whatever the admin queue does."""


@cocotb.test(timeout_time=16, timeout_unit="ms")
async def commands_end_while_logs_are_read(dut):
    """Reads that end well, and some that fail, end as soon as without anybody reading logs."""
    host = await bench(dut)
    host.latency = 4
    await host.create_pair(1, 16)
    pair = host.queues[1]
    model = await errors_so_far(host)
    host.statuses = {(0, block): Status.WRITE_FAULT for block in range(0, 64, 8)}
    longest, ends, over = 0, 0, False

    async def work(which: int) -> None:
        nonlocal longest, ends
        while not over:
            block = which if ends % 5 == 0 else 1 + host.random.randrange(7)
            code = nvme.WRITE_FAULT if block == which else nvme.SUCCESS
            identifier = host.place(
                pair, **nvme.read_write(nvme.READ, 1, block, 1), prp1=page + which * PAGE
            )
            await host.ring(pair)
            began = get_sim_time("ns")
            answer = await host.result(pair, identifier)
            assert answer.code == code
            ends += 1
            longest = max(longest, int((get_sim_time("ns") - began) / CLOCK_PERIOD_NS))
            if code:
                model.error(code, queue=1, identifier=identifier, block=block, nsid=1)

    page = host.page(64)
    tasks = [cocotb.start_soon(work(8 * n)) for n in range(2)]
    await ClockCycles(dut.clk, 3000)
    alone = longest
    longest = ends = 0
    logs = []
    for _ in range(4):
        logs.append(await error_log(host))
        await smart(host)
    over = True
    for task in tasks:
        await task
    print(f"longest: {alone} cycles, with logs being read {longest}; {ends} ended")
    assert ends > 100 and len(model.errors) > CONFIG.error_log_entries
    assert longest <= alone + MOST_WAIT, f"{longest} cycles, without logs {alone}"
    # Each log was one that there has been: entries in a row, none of them torn.
    for raw in logs:
        found = nvme_logs.error_entries(raw)
        newest = found[0].count
        assert len(found) == min(newest, CONFIG.error_log_entries)
        assert found == model.errors[newest - len(found) : newest][::-1]
    await check_errors(host, model)
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def errors_wait_for_a_log_that_is_read(dut):
    """The entries that a read of the log shows stay until they have all gone, however many
    commands fail meanwhile."""
    host = await bench(dut)
    await host.create_pair(1, 64)
    pair, page = host.queues[1], host.page(1)
    model = await errors_so_far(host)
    host.statuses = {(0, 0): Status.WRITE_FAULT}

    async def fail(count: int) -> None:
        identifiers = [
            host.place(pair, **nvme.read_write(nvme.READ, 1, 0, 1), prp1=page)
            for _ in range(count)
        ]
        await host.ring(pair)
        for identifier in identifiers:
            assert (await host.result(pair, identifier)).code == nvme.WRITE_FAULT

    async def read() -> None:
        found.extend(nvme_logs.error_entries(await error_log(host)))

    entries = CONFIG.error_log_entries
    for _ in range(3 * entries):
        await fail(1)
    found: list = []
    reader = cocotb.start_soon(read())
    failing = cocotb.start_soon(fail(2 * entries))
    await reader
    await failing
    counts = [entry.count for entry in found]
    assert counts == [*range(counts[0], counts[0] - entries, -1)], f"not in a row: {counts}"
    assert counts[0] < len(model.errors) + 5 * entries, "nothing has failed after the log was asked"
    await host.settle()


def test_nvme_logs():
    run_front_end(__name__)


class HoldsAll(PageGenerator):
    """A planted bug: nothing is noted, so no command ends, while an error log is made."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.log.showing):
            m.d.comb += self.log.hold.eq(1)
        return m


@pytest.mark.slow
def test_held_completions_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.nvme.front_end.PageGenerator", HoldsAll)
    with pytest.raises(SimulationError, match="cycles, without logs"):
        run_front_end(
            __name__, name="nvme_mutant_hold", testcase="commands_end_while_logs_are_read"
        )


@pytest.mark.slow
def test_longest_error_log():
    simulate(
        NvmeFrontEnd(config=replace(bench_config(), error_log_entries=64)),
        name="nvme_64_entries",
        module=__name__,
        testcase="the_longest_log_ends",
        parameters={"DATA_WIDTH": "256", "ENTRIES": "64"},
    )


@pytest.mark.slow
def test_units_rounded_down_are_caught(monkeypatch):
    whole = health.log_init
    monkeypatch.setattr(health, "log_init", lambda config: [0] * len(whole(config)))
    with pytest.raises(SimulationError, match="logs_tell_what_happened"):
        run_front_end(__name__, name="nvme_mutant_units", testcase="logs_tell_what_happened")


@pytest.mark.slow
def test_event_of_another_log_is_caught(monkeypatch):
    wrong = dict(zip(events.LOGS, list(events.LOGS.values())[::-1], strict=True))
    monkeypatch.setattr(events, "LOGS", wrong)
    with pytest.raises(SimulationError, match="events_are_reported_once"):
        run_front_end(__name__, name="nvme_mutant_events", testcase="events_are_reported_once")
