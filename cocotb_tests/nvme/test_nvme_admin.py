"""The NVMe front end's registers, interrupts and admin commands."""

import os
import struct

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.nvme.nvme_bench import Bench, bench_config
from cocotb_tests.nvme.nvme_model import MANAGE_OPCODES, fresh_geometry
from cocotb_tests.runner import simulate
from cocotb_tests.streams import sample
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level, Rotation
from hdl.flow.manage import ManageStatus
from hdl.nvme.front_end import NvmeFrontEnd
from sim.golden import nvme
from sim.golden.nvme import PAGE

CONFIG = bench_config()
GIB_BLOCKS = 1 << 18


def bench(dut) -> Bench:
    result = Bench(dut, CONFIG, int(os.environ["SEED"]))
    result.volumes = {
        0: {"valid": 1, "array": 1, "start": 0, "blocks": GIB_BLOCKS},
        2: {"valid": 1, "array": 0, "start": 77, "blocks": 0x12_3456_789A},
    }
    return result


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def registers_read_as_specified(dut):
    host = bench(dut)
    await host.reset()
    cap = await host.read64(nvme.CAP)
    assert cap & 0xFFFF == CONFIG.queue_depth - 1
    assert cap >> 16 & 1 and cap >> 37 & 1 and not cap >> 32 & 0xF and not cap >> 48
    # TO: three command timeouts of 8 s, of which each is kept to a tick. A row of RAID 6 may meet
    # three drives that hang, one after the other.
    assert CONFIG.parities == 2
    assert 2 * 3 * 3 * 8 <= cap >> 24 & 0xFF <= 2 * 3 * 3 * 8.5 + 1
    assert await host.read32(nvme.VS) == 0x0001_0400
    assert await host.read32(nvme.CSTS) == 0
    await host.write64(nvme.ASQ, 0x1234_5678_9ABC_D000)
    await host.write32(nvme.ASQ, 0x1111_1000)
    assert await host.read64(nvme.ASQ) == 0x1234_5678_1111_1000
    await host.write32(nvme.CAP, 0xFFFF_FFFF)
    assert await host.read64(nvme.CAP) == cap
    assert await host.read64(0xF00) == 0 and await host.read64(nvme.INTMS & ~7) == 0x10400
    # MSI-X table: any byte, reserved bits of Vector Control read 0, masked after reset.
    assert await host.read32(nvme.MSIX_TABLE + 12) == 1
    await host.write32(nvme.MSIX_TABLE + 8, 0xCAFE_F00D)
    await host.write32(nvme.MSIX_TABLE + 12, 0xFFFF_FFFE)
    assert await host.read64(nvme.MSIX_TABLE + 8) == 0xCAFE_F00D
    assert await host.read64(nvme.MSIX_TABLE + 16 * (CONFIG.queue_pairs + 1)) == 0
    assert await host.read64(nvme.MSIX_PENDING) == 0
    await host.settle()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def controller_comes_and_goes(dut):
    host = bench(dut)
    await host.reset()
    # A doorbell of a controller that is not ready does nothing.
    await host.write32(nvme.DOORBELLS, 3)
    for wrong in (1 << 4, 1 << 7, 1 << 11):
        await host.write32(nvme.CC, nvme.CC_ENABLE | wrong)
        await host.wait_status(nvme.CSTS_FATAL)
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
    await host.enable()
    assert await host.good(opcode=nvme.ABORT, dwords=(5 << 16,)) == 1
    # Commands in flight when the controller is disabled end silently.
    await host.create_pair(1, 8)
    host.hold = True
    host.place(host.queues[1], opcode=nvme.FLUSH, nsid=1)
    await host.ring(host.queues[1])
    await ClockCycles(dut.clk, 300)
    assert len(host.commands) == 1
    posts = host.posts
    await host.write32(nvme.CC, 0)
    await ClockCycles(dut.clk, 200)
    assert await host.read32(nvme.CSTS) & nvme.CSTS_READY
    host.hold = False
    await host.wait_status(0)
    assert host.posts == posts
    await host.enable()
    await host.good(opcode=nvme.ABORT)
    await host.bad(nvme.INVALID_QUEUE, opcode=nvme.DELETE_SQ, dwords=(1,))
    # Shutdown.
    await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
    await host.wait_status(nvme.CSTS_READY | nvme.CSTS_SHUTDOWN_COMPLETE)
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def identifies(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()
    host.geometries = {
        0: fresh_geometry(blocks=0x13_0000_0000), 1: fresh_geometry(blocks=GIB_BLOCKS + 5),
    }  # fmt: skip
    page = await host.page_of(opcode=nvme.IDENTIFY, dwords=(1,))
    total = sum(shape["blocks"] for shape in host.geometries.values())
    used = sum(volume["blocks"] for volume in host.volumes.values())
    assert int.from_bytes(page[280:296], "little") == total * PAGE, "TNVMCAP"
    assert int.from_bytes(page[296:312], "little") == (total - used) * PAGE, "UNVMCAP"
    assert page[4:24].decode() == nvme.serial_number(host.identity)
    assert page[24:64].decode().strip() == "Striata"
    assert 1 << page[77] == CONFIG.transfer_blocks
    assert struct.unpack_from("<I", page, 80)[0] == 0x10400
    assert page[111] == 1 and page[512] == 0x66 and page[513] == 0x44 and page[525] & 1
    assert struct.unpack_from("<I", page, 516)[0] == CONFIG.volumes
    assert page[258] == 3 and page[259] == CONFIG.async_event_limit - 1
    assert page[262] == CONFIG.error_log_entries - 1 and page[261] == 4
    assert struct.unpack_from("<HH", page, 266) == (343, 358)
    assert struct.unpack_from("<I", page, 92)[0] == 1 << 8
    # RTD3E: a drive's commands are aborted after 8 s, its port is reset after 8 s more, and once
    # more 8 s later it is given up. All that three times in a row, and once more in its flush.
    assert not CONFIG.slow_read_ms
    assert 4 * 3 * 8_000_000 <= struct.unpack_from("<I", page, 88)[0] <= 4 * 3 * 8_500_000
    assert struct.unpack_from("<H", page, 256)[0] == 1 << 3
    assert struct.unpack_from("<I", page, 540)[0] == CONFIG.volumes
    assert page[768:1024].rstrip(b"\0").decode() == nvme.subsystem_name(host.identity)
    assert not any(page[1024:])

    ids = set()
    for nsid in (1, 3):
        host.manage_answer = (ManageStatus.DONE, nsid - 1)
        await host.good(opcode=nvme.CREATE_VOLUME)
        blocks = host.volumes[nsid - 1]["blocks"]
        page = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid, offset=PAGE - 12)
        assert struct.unpack_from("<QQQ", page) == (blocks,) * 3
        found = nvme.Namespace.unpack(page)
        assert (found.format, found.formats, found.physical) == (0, (PAGE, 512), PAGE)
        eui64, nguid = page[120:128], page[104:120]
        assert not any(eui64)
        ids.add(nguid)
        page = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid, dwords=(3,))
        assert page[:4] == bytes((nvme.NGUID_DESCRIPTOR, 16, 0, 0)) and page[4:20] == nguid
        assert not any(page[20:])
    assert len(ids) == 2
    assert not any(await host.page_of(opcode=nvme.IDENTIFY, nsid=2))
    for nsid, expected in ((0, (1, 3)), (1, (3,)), (3, ())):
        page = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid, dwords=(2,))
        assert struct.unpack("<1024I", page) == (*expected, *[0] * (1024 - len(expected)))

    async def refused(code, **fields):
        await host.bad(code, opcode=nvme.IDENTIFY, prp1=host.page(), **fields)

    await refused(nvme.INVALID_FIELD, dwords=(6,))
    await refused(nvme.INVALID_NAMESPACE, nsid=0)
    await refused(nvme.INVALID_NAMESPACE, nsid=CONFIG.volumes + 1)
    await refused(nvme.INVALID_NAMESPACE, nsid=0xFFFF_FFFF, dwords=(3,))
    await refused(nvme.INVALID_FIELD, nsid=2, dwords=(3,))
    await refused(nvme.INVALID_NAMESPACE, nsid=0xFFFF_FFFE, dwords=(2,))
    await host.bad(nvme.INVALID_PRP_OFFSET, opcode=nvme.IDENTIFY, prp1=2, dwords=(1,))
    await host.bad(nvme.INVALID_PRP_OFFSET, opcode=nvme.IDENTIFY, prp1=4, prp2=8, dwords=(1,))
    await refused(nvme.INVALID_FIELD, dwords=(1,), psdt=1)
    await refused(nvme.INVALID_FIELD, dwords=(1,), fuse=2)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def queues_are_created_and_deleted(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()

    async def create_cq(code, number=1, last=7, flags=3, vector=1, **fields):
        fields.setdefault("prp1", 0x1000)
        dwords = (last << 16 | number, vector << 16 | flags)
        await host.bad(code, opcode=nvme.CREATE_CQ, dwords=dwords, **fields)

    async def create_sq(code, number=1, last=7, flags=1, cq=1, **fields):
        fields.setdefault("prp1", 0x1000)
        dwords = (last << 16 | number, cq << 16 | flags)
        await host.bad(code, opcode=nvme.CREATE_SQ, dwords=dwords, **fields)

    pairs = CONFIG.queue_pairs
    for create in (create_cq, create_sq):
        for number in (0, pairs + 1, 0x8001):
            await create(nvme.INVALID_QUEUE, number=number)
        for last in (0, CONFIG.queue_depth, 0xFFFF):
            await create(nvme.INVALID_QUEUE_SIZE, last=last)
        await create(nvme.INVALID_FIELD, flags=2)
        await create(nvme.INVALID_PRP_OFFSET, prp1=0x1004)
    await create_cq(nvme.INVALID_VECTOR, vector=pairs + 1)
    await create_sq(nvme.INVALID_CQ)
    for cq in (0, pairs + 1):
        await create_sq(nvme.INVALID_QUEUE, cq=cq)
    await host.bad(nvme.INVALID_QUEUE, opcode=nvme.DELETE_CQ, dwords=(1,))
    await host.bad(nvme.INVALID_QUEUE, opcode=nvme.DELETE_SQ, dwords=(1,))
    await host.bad(nvme.INVALID_QUEUE, opcode=nvme.DELETE_SQ, dwords=(0,))

    pair = await host.create_pair(1, 8)
    await create_cq(nvme.INVALID_QUEUE)
    await create_sq(nvme.INVALID_QUEUE)
    await host.bad(nvme.INVALID_QUEUE_DELETION, opcode=nvme.DELETE_CQ, dwords=(1,))
    # Deleting a queue waits for what was fetched from it; a second one goes on.
    await host.create_pair(2, 8)
    host.hold = True
    inside = host.place(pair, opcode=nvme.FLUSH, nsid=1)
    await host.ring(pair)
    await ClockCycles(dut.clk, 300)
    admin = host.queues[0]
    delete = host.place(admin, opcode=nvme.DELETE_SQ, dwords=(1,))
    await host.ring(admin)
    await ClockCycles(dut.clk, 300)
    assert delete in admin.waiting and not sample(dut.busy)
    await host.ring(pair)
    await host.bad(nvme.INVALID_OPCODE, 2, opcode=0x55, nsid=1)
    host.hold = False
    assert (await host.result(pair, inside)).code == nvme.SUCCESS
    assert (await host.result(admin, delete)).code == nvme.SUCCESS
    await host.ring(pair)
    await host.good(opcode=nvme.DELETE_CQ, dwords=(1,))
    # A shared completion queue, and queues that come again.
    pair = await host.create_pair(1, 16)
    await host.good(opcode=nvme.DELETE_SQ, dwords=(1,))
    await host.good(opcode=nvme.CREATE_SQ, prp1=pair.sq, dwords=(15 << 16 | 1, 2 << 16 | 1))
    pair.cq_number, pair.sq_tail = 2, 0
    for queue in (1, 2, 1):
        await host.good(queue, opcode=nvme.FLUSH, nsid=3)
    await host.bad(nvme.INVALID_QUEUE_DELETION, opcode=nvme.DELETE_CQ, dwords=(2,))
    await host.good(opcode=nvme.DELETE_CQ, dwords=(1,))
    # Entry sizes of CC that I/O queues cannot have.
    await host.write32(nvme.CC, 1)
    await create_cq(nvme.INVALID_QUEUE_SIZE, number=3)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def unknown_commands(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()
    for opcode in (0x03, 0x0B, 0x10, 0x18, 0x80, 0xC1, 0xFF):
        await host.bad(nvme.INVALID_OPCODE, opcode=opcode)
    assert await host.good(opcode=nvme.ABORT) == 1
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def arrays_and_volumes_are_managed(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()
    host.manage_answer = (ManageStatus.DONE, 5)
    dwords = (
        6 | 4 << 8 | 11 << 12 | 2 << 16 | 3 << 24, 0xF00F, 0, 0,
    )  # fmt: skip
    assert await host.good(opcode=nvme.CREATE_ARRAY, dwords=dwords) == 5
    request = host.manage_requests.pop()
    assert request.opcode == MANAGE_OPCODES[nvme.CREATE_ARRAY]
    assert (request.level, request.strip_shift, request.copies, request.spans) == (6, 4, 2, 3)
    assert request.rotation == Rotation.DDF_ZERO_RESTART.value
    assert request.drives == 0xF00F
    dwords = (3, 0x1111_2222, 0xAB, 0x3333_4444, 0xCD)
    assert await host.good(opcode=nvme.CREATE_VOLUME, dwords=dwords) == 5
    request = host.manage_requests.pop()
    assert request.array == 3 and request.start == 0xAB_1111_2222
    assert request.blocks == 0xCD_3333_4444
    for opcode in (nvme.DELETE_ARRAY, nvme.DELETE_VOLUME):
        await host.good(opcode=opcode, dwords=(7,))
        request = host.manage_requests.pop()
        assert request.opcode == MANAGE_OPCODES[opcode]
        assert request.array == 7 and request.volume == 7
    background = {
        nvme.START_JOB: ((2 | 3 << 8 | 1 << 12, 7, 0xEE), {"array": 2, "kind": 3, "resume": 1}),
        nvme.STOP_JOB: ((4,), {"array": 4}),
        nvme.SET_RATE: ((30,), {"rate": 30}),
        nvme.REPLACE_MEMBER: ((2 | 9 << 8, 5), {"array": 2, "position": 9, "port": 5}),
        nvme.ADD_SPARE: ((3 | 1 << 8, 6), {"array": 3, "dedicated": 1, "port": 6}),
        nvme.REMOVE_SPARE: ((0, 6), {"port": 6}),
        nvme.RE_ADD: ((2 | 9 << 8,), {"array": 2, "position": 9}),
        nvme.MIGRATE: ((2 | 9 << 8, 5 | 1 << 8), {"position": 9, "port": 5, "spare": 1}),
    }
    for opcode, (dwords, fields) in background.items():
        await host.good(opcode=opcode, dwords=dwords)
        request = host.manage_requests.pop()
        assert request.opcode == MANAGE_OPCODES[opcode]
        assert {name: request[name] for name in fields} == fields
        assert opcode != nvme.START_JOB or request.start == 0xEE_0000_0007
    flags = {4: "assumed", 5: "idle", 6: "degraded", 30: "initialise", 31: "zero"}
    for bit, name in flags.items():
        await host.good(opcode=nvme.CREATE_ARRAY, dwords=(1 << bit,))
        request = host.manage_requests.pop()
        assert [one for one in flags.values() if request[one]] == [name]
    for status, code in (
        (ManageStatus.NOT_REDUNDANT, nvme.NOT_REDUNDANT),
        (ManageStatus.JOB_RUNNING, nvme.JOB_RUNNING),
        (ManageStatus.OTHER_DRIVE, nvme.OTHER_DRIVE),
        (ManageStatus.INVALID_FIELD, nvme.INVALID_FIELD),
        (ManageStatus.DRIVE_UNAVAILABLE, nvme.DRIVE_UNAVAILABLE),
        (ManageStatus.NO_ENTRY, nvme.NO_ENTRY),
        (ManageStatus.IN_USE, nvme.IN_USE),
        (ManageStatus.NO_SPACE, nvme.NO_SPACE),
    ):
        host.manage_answer = (status, 0)
        await host.bad(code, opcode=nvme.DELETE_ARRAY, dwords=(1,))
    host.manage_requests.clear()
    for dwords in ((0, 0, 0x100), (0, 0, 0, 0, 0x100)):
        await host.bad(nvme.INVALID_FIELD, opcode=nvme.CREATE_VOLUME, dwords=dwords)
    await host.bad(nvme.INVALID_FIELD, opcode=nvme.START_JOB, dwords=(0, 0, 0x100))
    await host.bad(nvme.INVALID_FIELD, opcode=nvme.CREATE_ARRAY, psdt=1)
    assert not host.manage_requests
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def tables_are_listed(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()
    host.geometries = {
        1: fresh_geometry(
            width=2, spans=2, data=1, rotation=10, rows=0x12_0000_0003, blocks=0x45_0000_0006
        )
    }
    host.members = {(1, 0): 3, (1, 1): 0, (1, 2): 2, (1, 3): 1}
    host.ports = {port: {"used": port < 3, "array": 1} for port in range(4)}
    host.capacities = {port: 0x98_0000_0000 + port for port in range(4)}
    dut.drives__present.value = 0b1011
    dut.drives__failed.value = 0b0100
    dut.drives__stale.value = 0b1000
    dut.arrays__states.value = ArrayState.DEGRADED.value << 2
    dut.arrays__unsynced.value = 0b10
    dut.arrays__assumed.value = 0b01
    page = await host.page_of(opcode=nvme.LIST, dwords=(0,))
    assert not any(page[:256]) and not any(page[512:])
    words = struct.unpack_from("<64I", page, 256)
    present = [1, 1, 0, 1]
    for member, port in enumerate((3, 0, 2, 1)):
        health = present[port] << 9 | (port == 2) << 8 | (port == 3) << 10
        assert words[member] == 1 << 31 | health | port
    assert not any(words[4:32])
    assert words[32] == 1 | Level.RAID5.value << 4 | 0b11 << 8 | 1 << 16 | 1 << 24
    assert words[33] == 2 | 1 << 8 | 1 << 16 | 1 << 24
    assert words[34] == 2 | 4 << 8 | Rotation.DDF_N_RESTART.value << 16
    assert words[35] == ArrayState.DEGRADED.value | 1 << 2
    assert words[36:40] == (3, 0x12, 6, 0x45) and not any(words[40:])
    assert (await host.page_of(opcode=nvme.LIST, dwords=(1 << 8,)))[:256] == page[256:512]

    page = await host.page_of(opcode=nvme.LIST, dwords=(1,))
    for number in range(CONFIG.volumes):
        words = struct.unpack_from("<8I", page, 32 * number)
        entry = host.volumes.get(number)
        if entry is None:
            assert not any(words)
            continue
        start, blocks = entry["start"], entry["blocks"]
        assert words[0] == 1 | entry["array"] << 8 and words[1] == number + 1
        assert words[2] | words[3] << 32 == start and words[4] | words[5] << 32 == blocks
    assert not any(page[32 * CONFIG.volumes :])

    page = await host.page_of(opcode=nvme.LIST, dwords=(2,))
    for port in range(CONFIG.ports):
        words = struct.unpack_from("<8I", page, 32 * port)
        flags = present[port] | (port == 2) << 1 | (port < 3) << 2 | (port == 3) << 3
        assert words == (flags | 1 << 8, port, port, 0x98, 0, 0, 0, 0)
    assert not any(page[32 * CONFIG.ports :])
    await host.bad(nvme.INVALID_FIELD, opcode=nvme.LIST, dwords=(3,))
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def interrupts_follow_completions(dut):
    host = bench(dut)
    await host.reset()
    await host.enable()
    await host.create_pair(1, 8, vector=2)
    await host.settle()
    assert set(host.interrupts) == {0}
    host.interrupts.clear()
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.settle()
    assert host.interrupts == [2]
    # Masked: pending, and one message for all once unmasked.
    host.interrupts.clear()
    await host.write32(nvme.MSIX_TABLE + 16 * 2 + 12, 1)
    for _ in range(3):
        await host.good(1, opcode=nvme.FLUSH, nsid=1)
    assert await host.read64(nvme.MSIX_PENDING) == 1 << 2
    await host.write32(nvme.MSIX_TABLE + 16 * 2 + 12, 0)
    await host.settle()
    assert host.interrupts == [2] and await host.read64(nvme.MSIX_PENDING) == 0
    # The same for the function mask, and while MSI-X is disabled.
    host.interrupts.clear()
    dut.status__msix_mask.value = 1
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.settle()
    assert not host.interrupts
    dut.status__msix_mask.value = 0
    await host.settle()
    assert host.interrupts == [2]
    host.interrupts.clear()
    dut.status__msix_enable.value = 0
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.settle()
    assert not host.interrupts and await host.read64(nvme.MSIX_PENDING) == 1 << 2
    dut.status__msix_enable.value = 1
    await host.settle()
    assert host.interrupts == [2] and await host.read64(nvme.MSIX_PENDING) == 0
    # A message that waits to leave is withheld from the moment its vector is masked, even if that
    # passes; once it has been dropped its vector is pending, and then sent anew.
    dut.host__messages__left.value = 0
    for again in (False, True):
        host.interrupts.clear()
        await host.good(1, opcode=nvme.FLUSH, nsid=1)
        await host.settle()
        assert host.interrupts == [2] and not sample(dut.host__messages__withhold)
        assert await host.read64(nvme.MSIX_PENDING) == 0
        await host.write32(nvme.MSIX_TABLE + 16 * 2 + 12, 1)
        assert await host.read64(nvme.MSIX_PENDING) == 1 << 2
        if again:
            await host.write32(nvme.MSIX_TABLE + 16 * 2 + 12, 0)
        assert sample(dut.host__messages__withhold)
        dut.host__messages__dropped.value = 1
        await RisingEdge(dut.clk)
        dut.host__messages__dropped.value = 0
        await host.settle()
        if not again:
            assert host.interrupts == [2]
            assert await host.read64(nvme.MSIX_PENDING) == 1 << 2
            await host.write32(nvme.MSIX_TABLE + 16 * 2 + 12, 0)
            await host.settle()
        assert host.interrupts == [2, 2]
        dut.host__messages__left.value = 1
        await RisingEdge(dut.clk)
        dut.host__messages__left.value = 0
        await host.settle()
        assert await host.read64(nvme.MSIX_PENDING) == 0
    dut.host__messages__left.value = 1
    # A completion queue without interrupts.
    await host.good(opcode=nvme.CREATE_CQ, prp1=0x5000, dwords=(7 << 16 | 2, 1))
    await host.settle()


def test_nvme_admin():
    simulate(
        NvmeFrontEnd(config=CONFIG), name="nvme_w256", module=__name__, parameters={"SEED": "1"}
    )
