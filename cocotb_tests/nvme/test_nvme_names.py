"""Names of the card and of its namespaces: no other has them, and none is used twice."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_model import ADMIN_LINES
from cocotb_tests.runner import SimulationError
from hdl.flow.manage import ManageStatus
from hdl.nvme.admin.names import Names, big_endian
from sim.golden import nvme

CONFIG = bench_config()
MOST = (1 << 64) - 1


async def card_names(host) -> tuple[str, str]:
    """Serial number and NQN."""
    page = await host.page_of(opcode=nvme.IDENTIFY, dwords=(1,))
    name = page[768:1024].rstrip(b"\0").decode("ascii")
    return page[4:24].decode("ascii"), name


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def cards_differ(dut):
    """Each digit of the identity is one of the serial number and of the NQN."""
    host = Bench(dut, CONFIG, int(os.environ["SEED"]))
    await host.reset()
    await host.enable()
    serials, names = set(), set()
    cards = [0, MOST, 0x0123_4567_89AB_CDEF, *(1 << 4 * digit for digit in range(16))]
    cards += [host.random.getrandbits(64) for _ in range(4)]
    for identity in cards:
        dut.card__identity.value = identity
        serial, name = await card_names(host)
        assert serial == nvme.serial_number(identity) and len(serial) == 20
        assert name == nvme.subsystem_name(identity)
        serials.add(serial)
        names.add(name)
    assert len(serials) == len(names) == len(cards)
    await host.settle()


class Volumes:
    """Volumes that come and go, and what their names must be."""

    def __init__(self, host):
        self.host = host
        self.seen: set[bytes] = set()
        self.power_up()

    def power_up(self) -> None:
        """Nothing is left of before."""
        self.named: dict[int, bytes] = {}
        self.count = 0
        self.nonce: int | None = None
        self.host.volumes = {}

    def draw_nonce(self) -> int:
        """What the board offers now is not what it offers later."""
        value = self.host.random.getrandbits(64)
        self.host.dut.card__nonce.value = value
        return value

    async def create(self, volume: int) -> None:
        """A new volume; the first one of a power-up decides its nonce."""
        host = self.host
        nonce = self.draw_nonce()
        host.manage_answer = (ManageStatus.NO_SPACE, volume)
        await host.bad(nvme.NO_SPACE, opcode=nvme.CREATE_VOLUME)
        nonce = self.draw_nonce()
        host.manage_answer = (ManageStatus.DONE, volume)
        await host.good(opcode=nvme.CREATE_VOLUME)
        self.nonce = nonce if self.nonce is None else self.nonce
        self.draw_nonce()
        name = nvme.namespace_name(host.identity, self.nonce, self.count)
        assert name not in self.seen, "used twice"
        self.seen.add(name)
        self.named[volume] = name
        self.count += 1
        host.volumes[volume] = {"valid": 1, "array": 0, "start": 0, "blocks": 8}

    async def delete(self, volume: int) -> None:
        """One less; its name is never seen again."""
        host = self.host
        host.manage_answer = (ManageStatus.DONE, volume)
        await host.good(opcode=nvme.DELETE_VOLUME, dwords=(volume,))
        del self.named[volume], host.volumes[volume]

    async def check(self) -> None:
        """Each has its own, in both places in which it is told; there is no EUI-64."""
        host = self.host
        for volume, name in self.named.items():
            nsid = volume + 1
            page = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid)
            assert page[104:120] == name, f"{page[104:120].hex()}, not {name.hex()}"
            assert not any(page[120:128])
            page = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid, dwords=(3,))
            assert page[:4] == bytes((nvme.NGUID_DESCRIPTOR, 16, 0, 0))
            assert page[4:20] == name and not any(page[20:])


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def volumes_are_never_the_same(dut):
    host = Bench(dut, CONFIG, int(os.environ["SEED"]))
    await host.reset()
    await host.enable()
    volumes = Volumes(host)
    kept = 0  # the first line that was offered stays with the front end
    for power_up in range(2):
        if power_up:
            await host.settle()
            assert host.allocate.waiting == ADMIN_LINES - 1, "which line was kept is not known"
            dut.rst.value = 1
            await ClockCycles(dut.clk, 4)
            dut.rst.value = 0
            host.allocate.send(kept)
            volumes.power_up()
            await host.enable()
        for _ in range(10):
            volume = host.random.randrange(CONFIG.volumes)
            if volume in volumes.named:
                await volumes.delete(volume)
                if host.random.random() < 0.5:
                    await volumes.create(volume)
            else:
                await volumes.create(volume)
        await volumes.check()
        # A controller reset is none of their business.
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        volumes.draw_nonce()
        await host.enable()
        await volumes.check()
    assert len(volumes.seen) > 8
    await host.settle()


def test_nvme_names():
    run_front_end(__name__)


class Countless(Names):
    """A planted bug: all volumes of a power-up have one name."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.read.name[3].eq(0)
        return m


class Timeless(Names):
    """A planted bug: names return with power."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.read.name[0].eq(big_endian(self.card.identity[32:]))
        return m


class Restless(Names):
    """A planted bug: the nonce is that of the moment."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        upper = self.card.identity[32:] ^ self.card.nonce[:32][::-1]
        m.d.comb += self.read.name[0].eq(big_endian(upper))
        return m


@pytest.mark.parametrize("mutant", [Countless, Timeless, Restless])
@pytest.mark.slow
def test_planted_bugs_are_caught(monkeypatch, mutant):
    monkeypatch.setattr("hdl.nvme.front_end.Names", mutant)
    with pytest.raises(SimulationError, match="volumes_are_never_the_same"):
        run_front_end(
            __name__, name=f"nvme_{mutant.__name__}", testcase="volumes_are_never_the_same"
        )
