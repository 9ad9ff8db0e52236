"""What the NVMe front end looks at in host data: Compare and Dataset Management."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_model import contents
from cocotb_tests.runner import SimulationError
from hdl.flow.host_command import Status
from hdl.nvme.commands import examine
from sim.golden import nvme, nvme_logs
from sim.golden.nvme import PAGE

VOLUME_BLOCKS = 5000
MOST_RANGES = 256


def config():
    return bench_config(int(os.environ["DATA_WIDTH"]))


async def bench(dut, **options) -> Bench:
    host = Bench(dut, config(), int(os.environ["SEED"]), **options)
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    await host.create_pair(1, 16)
    return host


def place_blocks(host, pages, offset: int, blocks: list[bytes]) -> None:
    """Writes ``blocks`` where the PRPs of ``pages`` say."""
    for number, content in enumerate(blocks):
        position = 0
        for address, length in nvme.segments(pages, offset, number):
            host.memory[address : address + length] = content[position : position + length]
            position += length


async def compare(host, block: int, blocks: int, *, offset: int = 0, wrong=None, nsid: int = 1):
    """Compares what is stored; the bit ``wrong`` of the transfer is turned over. The status."""
    pages, prp1, prp2 = host.buffer(blocks, offset=offset)
    data = bytearray()
    for number in range(block, block + blocks):
        data += host.written.get((nsid - 1, number)) or contents(nsid - 1, number)
    if wrong is not None:
        data[wrong // 8] ^= 1 << wrong % 8
    place_blocks(host, pages, offset, [data[n : n + PAGE] for n in range(0, len(data), PAGE)])
    before = {page: bytes(host.memory[page : page + PAGE]) for page in pages}
    fields = nvme.read_write(nvme.COMPARE, nsid, block, blocks)
    pair = host.queues[1]
    identifier = host.place(pair, **fields, prp1=prp1, prp2=prp2)
    await host.ring(pair)
    answer = await host.result(pair, identifier)
    for page in pages:
        assert host.memory[page : page + PAGE] == before[page], "host data changed"
    host._pages = [page // PAGE for page in pages] + host._pages
    return answer


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def every_bit_counts(dut):
    host = await bench(dut)
    most = host.config.transfer_blocks
    wide = host.config.data_width > 64
    for offset in (0, 4, PAGE - 4) if wide else (8,):
        for blocks in (1, most // 2) if offset == 4 else (1,):
            block = host.random.randrange(VOLUME_BLOCKS - blocks)
            assert (await compare(host, block, blocks, offset=offset)).code == nvme.SUCCESS
            for wrong in (0, 8 * PAGE * blocks - 1, host.random.randrange(8 * PAGE * blocks)):
                answer = await compare(host, block, blocks, offset=offset, wrong=wrong)
                assert answer.code == nvme.COMPARE_FAILURE, f"bit {wrong} of {blocks} blocks"
                assert answer.do_not_retry and answer.more
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def compares_among_others(dut):
    """Reads, writes, compares and ranges at once, each in a region of its own."""
    host = await bench(dut, active=0.5)

    async def mix(which: int) -> None:
        for turn in range(2):
            block, count = 700 * which + host.random.randrange(8), host.random.randint(1, 5)
            pages, prp1, prp2 = host.buffer(count)
            data = [host.random.randbytes(64) * (PAGE // 64) for _ in pages]
            place_blocks(host, pages, 0, data)
            wish = nvme.read_write(nvme.WRITE, 1, block, count)
            await host.good(1, **wish, prp1=prp1, prp2=prp2)
            # A compare fails for what others see of it only if its own data differs.
            wrong = host.random.randrange(8 * PAGE * count) if turn % 2 else None
            answer = await compare(host, block, count, wrong=wrong)
            assert answer.code == (nvme.SUCCESS if wrong is None else nvme.COMPARE_FAILURE)
            await deallocate(host, [(block, count)])
            place_blocks(host, pages, 0, [b"\xee" * PAGE] * count)
            wish = nvme.read_write(nvme.READ, 1, block, count)
            await host.good(1, **wish, prp1=prp1, prp2=prp2)
            # Deallocation is a hint that changes nothing.
            for number in range(count):
                assert host.host_block(pages, 0, number) == data[number]
            host._pages = [page // PAGE for page in pages] + host._pages

    for task in [cocotb.start_soon(mix(which)) for which in range(3)]:
        await task
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def errors_of_compare(dut):
    host = await bench(dut)
    page = host.page()

    async def bad(code, block=0, blocks=1, nsid=1, **extra):
        fields = nvme.read_write(nvme.COMPARE, nsid, block, blocks) | {"prp1": page} | extra
        await host.bad(code, 1, **fields)

    await bad(nvme.LBA_OUT_OF_RANGE, block=VOLUME_BLOCKS)
    await bad(nvme.LBA_OUT_OF_RANGE, block=1 << 50)
    await bad(nvme.INVALID_NAMESPACE, nsid=9)
    await bad(nvme.INVALID_FIELD, nsid=2)
    await bad(nvme.INVALID_FIELD, blocks=host.config.transfer_blocks + 1)
    # Fused operations are not supported (FUSES = 0).
    for fuse in (1, 2, 3):
        await bad(nvme.INVALID_FIELD, fuse=fuse)
    await bad(nvme.INVALID_PRP_OFFSET, prp1=page + 2)
    host.statuses = {(0, 40): Status.UNRECOVERED_READ}
    await bad(nvme.UNRECOVERED_READ, block=40)
    host.statuses = {}
    host.poisoned = {page // PAGE}
    await bad(nvme.DATA_TRANSFER_ERROR)
    host.poisoned = set()
    # Compares are the host's reads (SMART).
    dwords = (2 | (nvme_logs.SMART_BYTES // 4 - 1) << 16,)

    async def smart() -> nvme_logs.Smart:
        raw = await host.page_of(opcode=nvme.GET_LOG, dwords=dwords, length=512)
        return nvme_logs.Smart.unpack(raw)

    before = await smart()
    for _ in range(3):
        assert (await compare(host, 7, 1)).code == nvme.SUCCESS
    assert (await smart()).reads == before.reads + 3
    await host.settle()


async def deallocate(host, wanted, *, offset=0, nsid=1, code=nvme.SUCCESS, **extra) -> None:
    """Dataset Management of ``wanted`` ranges, ``offset`` bytes into a page, to end with ``code``;
    whatever of the pages is not the list is ranges that do not exist."""
    fields, data = nvme.dataset(nsid, wanted)
    pages = [host.page(), host.page()]
    for page in pages:
        host.memory[page : page + PAGE] = b"\xff" * PAGE
    first = data[: PAGE - offset]
    host.memory[pages[0] + offset : pages[0] + offset + len(first)] = first
    host.memory[pages[1] : pages[1] + len(data) - len(first)] = data[len(first) :]
    prp2 = pages[1] if len(first) < len(data) else 0xBAD
    answer = await host.run(1, **(fields | {"prp1": pages[0] + offset, "prp2": prp2} | extra))
    assert answer.code == code, f"{answer.code:#x}, not {code:#x}, of {len(wanted)} ranges"
    host._pages = [page // PAGE for page in pages] + host._pages


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def ranges_are_checked(dut):
    host = await bench(dut)

    def good_range():
        blocks = host.random.choice((0, 1, 9, 1000))
        return host.random.randrange(VOLUME_BLOCKS - blocks + 1), blocks

    # At 64 bits a range takes two beats, and long lists take long.
    most = MOST_RANGES if host.config.data_width > 64 else 5
    for count in (1, 2, 3, most):
        for offset in (0, 4, PAGE - 16) if count > 1 else (PAGE - 4,):
            wanted = [good_range() for _ in range(count)]
            await deallocate(host, wanted, offset=offset)
            # One range is wrong, wherever it stands.
            at = host.random.choice((0, count - 1, host.random.randrange(count)))
            wanted[at] = host.random.choice(
                (
                    (VOLUME_BLOCKS, 1),
                    (VOLUME_BLOCKS - 3, 4),
                    (0, VOLUME_BLOCKS + 1),
                    (VOLUME_BLOCKS - 1, (1 << 32) - 1),
                    (1 << 40, 1),
                    ((1 << 64) - 1, 1),
                )
            )
            await deallocate(host, wanted, offset=offset, code=nvme.LBA_OUT_OF_RANGE)
    await deallocate(host, [(0, VOLUME_BLOCKS), (VOLUME_BLOCKS, 0)])
    assert not host.commands and not host.written, "a hint reached the data path"
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def ranges_have_their_turn(dut):
    """However many blocks wait to be compared, and however long that goes on."""
    host = await bench(dut)
    ended = 0
    going = True

    async def keep_comparing(which: int) -> None:
        nonlocal ended
        while going:
            assert (await compare(host, 700 * which, 4)).code == nvme.SUCCESS
            ended += 1

    tasks = [cocotb.start_soon(keep_comparing(which)) for which in range(4)]
    for _ in range(3):
        while ended < len(tasks):
            await ClockCycles(dut.clk, 20)
        ended = 0
        managing = cocotb.start_soon(deallocate(host, [(0, 1)]))
        while not managing.done():
            await ClockCycles(dut.clk, 20)
            assert ended <= 2 * len(tasks), "Dataset Management waits for every Compare"
        await managing
        ended = 0
    going = False
    for task in tasks:
        await task
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def errors_of_ranges(dut):
    host = await bench(dut)
    good = [(0, 1)] * 3
    await deallocate(host, good, nsid=9, code=nvme.INVALID_NAMESPACE)
    await deallocate(host, good, nsid=2, code=nvme.INVALID_FIELD)
    await deallocate(host, good, psdt=1, code=nvme.INVALID_FIELD)
    await deallocate(host, good, fuse=1, code=nvme.INVALID_FIELD)
    page = host.page()
    for prp1, prp2 in ((page + 1, 0), (page + PAGE - 32, page + 8), (page + PAGE - 32, page + 2)):
        await deallocate(host, good, prp1=prp1, prp2=prp2, code=nvme.INVALID_PRP_OFFSET)
    host.poisoned = {page // PAGE}
    await deallocate(host, good, prp1=page, code=nvme.DATA_TRANSFER_ERROR)
    host.poisoned = set()
    # Many at once, more than the unit can have in hand.
    pair = host.queues[1]
    lists = []
    for number in range(12):
        fields, data = nvme.dataset(1, [(VOLUME_BLOCKS if number % 3 else 1, number % 2)] * 40)
        at = host.page()
        host.memory[at : at + len(data)] = data
        lists.append((host.place(pair, **fields, prp1=at), number))
    await host.ring(pair)
    for identifier, number in lists:
        bad = number % 3 and number % 2
        answer = await host.result(pair, identifier)
        assert answer.code == (nvme.LBA_OUT_OF_RANGE if bad else nvme.SUCCESS), number
    # They are no I/O of the host.
    page = await host.page_of(opcode=nvme.IDENTIFY, dwords=(1,))
    assert page[520] & 0b101 == 0b101, "ONCS"
    await host.settle()


@pytest.mark.parametrize("data_width", [pytest.param(64, marks=pytest.mark.slow), 256])
def test_nvme_examine(data_width):
    run_front_end(__name__, data_width=data_width)


class HalfBlind(examine.Examine):
    """A planted bug: every other beat is never looked at."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.line_read.request.payload[0].eq(0)
        return m


@pytest.mark.slow
def test_missed_differences_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.nvme.front_end.Examine", HalfBlind)
    with pytest.raises(SimulationError, match="every_bit_counts"):
        run_front_end(__name__, name="nvme_mutant_compare", testcase="every_bit_counts")


@pytest.mark.slow
def test_half_a_list_is_caught(monkeypatch):
    monkeypatch.setattr(examine, "RANGE_DWORDS", examine.RANGE_DWORDS // 2)
    with pytest.raises(SimulationError, match="ranges_are_checked"):
        run_front_end(__name__, name="nvme_mutant_ranges", testcase="ranges_are_checked")
