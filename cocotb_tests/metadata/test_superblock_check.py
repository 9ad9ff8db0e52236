"""`hdl.metadata.superblock_check.SuperblockCheck` against the model of md's superblock."""

import os
import random
import struct
from collections import Counter

import cocotb
import pytest

from cocotb_tests.metadata.superblock_pages import (
    GOOD,
    SECTORS,
    changed,
    expected,
    hostile,
    kept_words,
    random_superblock,
    sealed,
    unsealed,
)
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, every_cycle, sample, start, unpack
from hdl.metadata.superblock import KEPT_WORDS, Finding
from hdl.metadata.superblock_check import KeptWord, SuperblockCheck
from sim.golden.superblock import (
    CHECKSUM_AT,
    HEAD_BYTES,
    JOURNAL,
    PAGE_BYTES,
    Superblock,
)


class Bench:
    """Gives pages to the check, and looks at what it says and keeps."""

    def __init__(self, dut, *, active: float):
        self.words = StreamSource(dut, "words", active=active)
        self.finding = StreamSink(dut, "finding", layout=Finding, active=active)
        self.kept: list[int] = []
        dut.sectors.value = SECTORS
        every_cycle(dut.clk, self._listen(dut))

    def _listen(self, dut):
        while True:
            yield
            if sample(dut.kept__valid):
                one = unpack(KeptWord, sample(dut.kept__payload))
                assert one.number == len(self.kept), "words are not kept in order"
                self.kept.append(one.word)

    async def check(self, page: bytes) -> Finding:
        """Fails if the finding is wrong, or another word is kept."""
        self.kept.clear()
        self.words.send_all(struct.unpack_from(f"<{KEPT_WORDS}I", page))
        found = await self.finding.receive(cycles=8 * KEPT_WORDS)
        wanted = expected(page)
        assert found == wanted, f"{found}, not {wanted}: {page[: PAGE_BYTES // 8].hex()}"
        if found == Finding.VALID:
            assert self.kept == kept_words(page), "what is kept is not what was read"
        return found


def named_pages() -> list[bytes]:
    """One for each reason, and limits."""
    edge = SECTORS - 2048
    return [
        GOOD.pack(),
        bytes(PAGE_BYTES),
        b"\xff" * PAGE_BYTES,
        changed(magic=0x6D746962),
        changed(major_version=0),
        changed(super_offset=0),
        changed(super_offset=8 | 1 << 32),
        changed(super_offset=0, features=1 << 13),
        changed(features=1 << 13),
        changed(features=1 << 31),
        changed(pad0=1),
        changed(pad3=struct.pack("<I", 4096)),
        changed(pad3=bytes(31) + b"\1"),
        unsealed(max_devices=1921),
        unsealed(max_devices=1920),
        unsealed(max_devices=0xFFFFFFFF),
        unsealed(max_devices=129),
        unsealed(max_devices=129, features=1 << 13),
        unsealed(max_devices=127),
        changed(max_devices=127),
        changed(max_devices=0),
        changed(data_offset=8),
        changed(data_offset=9),
        changed(data_offset=(1 << 64) - 1),
        changed(data_offset=1 << 44 | 2048),
        changed(data_size=9),
        changed(data_size=10, size=8),
        changed(data_size=edge),
        changed(data_size=edge + 1),
        changed(data_size=(1 << 44) - 1),
        changed(data_size=1 << 63 | 4096),
        changed(features=8, bad_blocks_size=9),
        changed(features=8, bad_blocks_size=8),
        changed(features=0, bad_blocks_size=9, bad_blocks_offset=0),
        changed(features=8, bad_blocks_offset=0),
        changed(features=0x401),
        changed(features=0xC00),
        changed(features=0x600),
        changed(features=0x44, new_offset=-2040),
        changed(features=0x44, new_offset=-2039),
        changed(features=0x44, new_offset=-(1 << 31)),
        changed(features=0x40, new_offset=-2047),
        changed(device_number=200),
        _with_role(5, JOURNAL),
        _with_role(5, JOURNAL, features=0x200),
        _with_role(127, JOURNAL, device=127),
        _with_role(127, JOURNAL, device=200),
        _with_role(72, JOURNAL, device=200),
        _beyond(_with_role(100, JOURNAL, device=100), devices=64),
        _with_role(126, JOURNAL, device=127),
    ]


def _with_role(number: int, role: int, *, device: int = 5, **values) -> bytes:
    """`GOOD` of device 5, with another role for a device."""
    roles = list(GOOD.roles)
    roles[number] = role
    one = Superblock(**{**vars(GOOD), "roles": tuple(roles), "device_number": device, **values})
    return one.pack()


def _beyond(page: bytes, *, devices: int) -> bytes:
    """The page with fewer devices. What stands behind their roles is not erased."""
    at = CHECKSUM_AT + 4
    return sealed(page[:at] + struct.pack("<I", devices) + page[at + 4 :])


def garbage(generator: random.Random) -> bytes:
    """A page of anything."""
    return generator.randbytes(PAGE_BYTES)


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def finds_what_md_finds(dut):
    """Pages with one fault, hostile ones, good ones, and garbage, in any order."""
    bench = Bench(dut, active=float(os.environ["ACTIVE"]))
    await start(dut)
    generator = random.Random(f"{cocotb.RANDOM_SEED}/check")
    pages = named_pages()
    makers = [hostile, hostile, lambda it: random_superblock(it).pack(), garbage]
    pages += [generator.choice(makers)(generator) for _ in range(int(os.environ["PAGES"]))]
    for _ in range(len(pages) // 10):
        # A bit of a page that is right.
        page = bytearray(random_superblock(generator).pack())
        page[generator.randrange(HEAD_BYTES + 64)] ^= 1 << generator.randrange(8)
        pages.append(bytes(page))
    generator.shuffle(pages)
    found = Counter([await bench.check(page) for page in pages])
    missing = set(Finding) - {Finding.UNREAD, Finding.UNREADABLE} - set(found)
    assert not missing, f"never found: {missing}"


class BelievesTheSum(SuperblockCheck):
    """A planted bug: the upper bits of the sum are not added to the lower ones."""

    def _judgement(self, m):
        short = self._sum
        self._sum = short[:32]
        finding = super()._judgement(m)
        self._sum = short
        return finding


class ForgetsNothing(SuperblockCheck):
    """A planted bug: what was wrong with one page is wrong with the next."""

    def _begin(self, m):
        pass


class LooksAtNobodysRole(SuperblockCheck):
    """A planted bug: each word has a role of the drive."""

    def _own_role(self, m, number, word):
        super()._own_role(m, number[:6] | 64, word)


def run(component, name: str, *, pages: int, active: float = 1.0, timeout: float = 900) -> None:
    simulate(
        component,
        name=name,
        module=__name__,
        parameters={"PAGES": str(pages), "ACTIVE": str(active)},
        timeout=timeout,
    )


@pytest.mark.parametrize("active", [1.0, 0.6])
def test_superblock_check(active: float):
    run(SuperblockCheck(), f"superblock_check_{int(10 * active)}", pages=400, active=active)


@pytest.mark.slow
def test_a_hundred_thousand_pages():
    run(SuperblockCheck(), "superblock_check_long", pages=100_000, timeout=3600)


@pytest.mark.parametrize(
    "bug",
    [
        BelievesTheSum,
        *(
            pytest.param(bug, marks=pytest.mark.slow)
            for bug in (ForgetsNothing, LooksAtNobodysRole)
        ),
    ],
)
def test_superblock_check_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: finds_what_md_finds"):
        run(bug(), f"superblock_check_{bug.__name__}", pages=100)
