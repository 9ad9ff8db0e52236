"""Identify lists, Namespace Management and Namespace Attachment of the NVMe front end."""

import os
import struct

import cocotb
import pytest

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.nvme.admin import namespaces
from sim.golden import nvme, nvme_logs
from sim.golden.nvme import PAGE

CONFIG = bench_config()
EVERY = 0xFFFF_FFFF
ATTACH, DETACH = 0, 1
CREATE, DELETE = 0, 1


async def bench(dut) -> Bench:
    host = Bench(dut, CONFIG, int(os.environ["SEED"]))
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": 5000}
    host.volumes = {0: entry, 1: entry, 3: entry}
    await host.reset()
    await host.enable()
    return host


async def identify(host, structure: int, nsid: int = 0, *, controller: int = 0) -> bytes:
    return await host.page_of(
        opcode=nvme.IDENTIFY, nsid=nsid, dwords=(structure | controller << 16,)
    )


async def listed(host, structure: int, nsid: int = 0) -> list[int]:
    return list(nvme_logs.namespace_list(await identify(host, structure, nsid)))


async def attach(host, nsid: int, select: int, code: int = nvme.SUCCESS, *, identifiers=(0,)):
    """Namespace Attachment with a controller list of ``identifiers``."""
    page = host.page() + 4 * host.random.randrange(1000)
    words = struct.pack(f"<{1 + len(identifiers)}H", len(identifiers), *identifiers)
    host.memory[page : page + len(words)] = words
    fields = {
        "opcode": nvme.NAMESPACE_ATTACHMENT, "nsid": nsid, "dwords": (select,), "prp1": page,
    }  # fmt: skip
    if code:
        await host.bad(code, **fields)
    else:
        await host.good(**fields)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def lists_tell_active_from_allocated(dut):
    host = await bench(dut)
    for volume in (0, 1):
        host.manage_answer = (ManageStatus.DONE, volume)
        await host.good(opcode=nvme.CREATE_VOLUME)
    await attach(host, 2, DETACH)
    for after in range(CONFIG.volumes + 1):
        for structure, all_of_it in ((2, (1, 4)), (0x10, (1, 2, 4))):
            expected = [nsid for nsid in all_of_it if nsid > after]
            assert await listed(host, structure, after) == expected
    active = await identify(host, 0, 1)
    assert struct.unpack_from("<QQQ", active) == (5000,) * 3
    assert int.from_bytes(active[48:64], "little") == 5000 * PAGE, "NVMCAP"
    assert active[33] == 0 and active[24] == 0 and active[130] == 12
    assert not any(await identify(host, 0, 2)) and not any(await identify(host, 0, 3))
    allocated = await identify(host, 0x11, 2)
    assert allocated[:104] == active[:104] and allocated[120:128] == active[120:128]
    assert allocated[104:120] != active[104:120]
    assert not any(await identify(host, 0x11, 3))
    # What all namespaces have in common: neither sizes nor names.
    common = await identify(host, 0, EVERY)
    assert not any(common[:24]) and not any(common[48:64]) and not any(common[104:128])
    assert common[24:48] == active[24:48] and common[128:] == active[128:]
    one, none = struct.pack("<HH", 1, 0), bytes(4)
    for nsid, expected in ((1, one), (2, none), (3, none), (4, one)):
        page = await identify(host, 0x12, nsid)
        assert page[:4] == expected and not any(page[4:])
        assert not any(await identify(host, 0x12, nsid, controller=1))
    page = await identify(host, 0x13, 77)
    assert page[:4] == one and not any(page[4:])
    assert not any(await identify(host, 0x13, controller=0xFFFF))

    async def refused(code, structure, nsid=1):
        await host.bad(
            code, opcode=nvme.IDENTIFY, dwords=(structure,), nsid=nsid, prp1=host.page()
        )

    for structure in (4, 5, 6, 7, 8, 9, 0x0F, 0x14, 0x15, 0x16, 0xC0, 0xFF):
        await refused(nvme.INVALID_FIELD, structure)
    for structure in (0x11, 0x12, 3):
        for nsid in (0, CONFIG.volumes + 1, EVERY):
            await refused(nvme.INVALID_NAMESPACE, structure, nsid)
    for structure in (2, 0x10):
        for nsid in (EVERY - 1, EVERY):
            await refused(nvme.INVALID_NAMESPACE, structure, nsid)
    await refused(nvme.INVALID_FIELD, 3, 2)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def detached_namespaces_are_inactive(dut):
    host = await bench(dut)
    await host.create_pair(1, 8)
    await host.good(1, opcode=nvme.FLUSH, nsid=2)
    await host.good(opcode=nvme.SET_FEATURES, dwords=(11, nvme_logs.NAMESPACE_NOTICES))
    admin = host.queues[0]
    event = host.place(admin, opcode=nvme.ASYNC_EVENT)
    await host.ring(admin)
    await attach(host, 2, ATTACH, nvme.ALREADY_ATTACHED)
    await attach(host, 2, DETACH)
    answer = await host.result(admin, event)
    assert nvme_logs.event(answer.result) == (nvme_logs.NOTICE_EVENT, 0, 4)
    await attach(host, 2, DETACH, nvme.NOT_ATTACHED)
    issued = len(host.commands)
    for opcode in (nvme.READ, nvme.WRITE, nvme.FLUSH):
        await host.bad(nvme.INVALID_FIELD, 1, opcode=opcode, nsid=2, prp1=host.page())
    assert len(host.commands) == issued
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    # Detached over a reset; attached again.
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    await host.create_pair(1, 8)
    assert await listed(host, 2) == [1, 4]
    await attach(host, 2, ATTACH)
    await host.good(1, opcode=nvme.FLUSH, nsid=2)
    assert await listed(host, 2) == [1, 2, 4]
    # Bad lists, selections, namespaces, addresses, memory.
    for identifiers in ((), (1,), (0, 1), (0xFFFF,)):
        await attach(
            host, 1, DETACH, nvme.CONTROLLER_LIST_INVALID, identifiers=identifiers
        )
    await attach(host, 1, 2, nvme.INVALID_FIELD)
    await attach(host, 3, DETACH, nvme.INVALID_FIELD)
    await attach(host, EVERY, DETACH, nvme.INVALID_FIELD)
    for nsid in (0, CONFIG.volumes + 1):
        await attach(host, nsid, DETACH, nvme.INVALID_NAMESPACE)
    fields = {"opcode": nvme.NAMESPACE_ATTACHMENT, "nsid": 1, "dwords": (DETACH,)}
    await host.bad(nvme.INVALID_PRP_OFFSET, prp1=2, **fields)
    await host.bad(nvme.INVALID_FIELD, psdt=1, **fields)
    page = host.page()
    host.poisoned = {page // PAGE}
    await host.bad(nvme.DATA_TRANSFER_ERROR, prp1=page, **fields)
    host.poisoned = set()
    assert await listed(host, 2) == [1, 2, 4]
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def namespaces_are_deleted(dut):
    host = await bench(dut)
    await attach(host, 1, DETACH)

    async def manage(select: int, nsid: int, code: int = nvme.SUCCESS) -> list[int]:
        host.manage_requests.clear()
        fields = {"opcode": nvme.NAMESPACE_MANAGEMENT, "nsid": nsid, "dwords": (select,)}
        if code:
            await host.bad(code, **fields)
        else:
            assert await host.good(**fields) == 0
        for request in host.manage_requests:
            assert request.opcode == ManageOpcode.DELETE_VOLUME
        return [request.volume for request in host.manage_requests]

    assert await manage(DELETE, 4) == [3]
    host.manage_answer = (ManageStatus.NO_ENTRY, 0)
    assert await manage(DELETE, 3, nvme.INVALID_FIELD) == [2]
    every = list(range(CONFIG.volumes))
    assert await manage(DELETE, EVERY) == every
    host.manage_answer = (ManageStatus.DONE, 0)
    assert await manage(DELETE, EVERY) == every
    for nsid in (0, CONFIG.volumes + 1):
        assert await manage(DELETE, nsid, nvme.INVALID_NAMESPACE) == []
    for select in (CREATE, 2, 15):
        assert await manage(select, 1, nvme.INVALID_FIELD) == []
    # A volume that is created is attached.
    assert await listed(host, 2) == [2, 4]
    assert await host.good(opcode=nvme.CREATE_VOLUME) == 0
    assert await listed(host, 2) == [1, 2, 4]
    await host.settle()


def test_nvme_namespaces():
    run_front_end(__name__)


@pytest.mark.slow
def test_list_of_another_controller_is_caught(monkeypatch):
    monkeypatch.setattr(namespaces, "CONTROLLER_LIST", 1 << 16 | 1)
    with pytest.raises(SimulationError, match="detached_namespaces_are_inactive"):
        run_front_end(
            __name__, name="nvme_mutant_list", testcase="detached_namespaces_are_inactive"
        )
