"""The card as a device of a virtual machine: proxy, bridge, and (slow) a stock Linux in QEMU."""

import inspect
import os
import random
import runpy
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from cocotb_tests.software.guest_host import MIB, GuestHost, message
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, board
from hdl.flow.geometry import Level
from hdl.nvme.pages.identify import Identity
from sim.checkout import BUILD, ROOT
from sim.golden.layout import Layout
from sim.native.harness import Harness
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import raid
from sw.driver.commands import Io, read_write
from sw.driver.nvme import Nvme
from sw.driver.raid import Array
from sw.guest import packages
from sw.guest.config_space import (
    BAR0,
    COMMAND,
    CONFIG_BYTES,
    DEVICE_CONTROL,
    EXPRESS_IDENTIFIER,
    INITIAL_CONTROL,
    INITIATE_RESET,
    MSIX,
    ConfigSpace,
)
from sw.guest.initramfs import Initramfs, modules
from sw.guest.nvme_cli import NvmeCli
from sw.guest.proxy import (
    BAR_ACCESS,
    CONFIG_ACCESS,
    HEADER,
    DeviceProxy,
    Message,
    ProxyClosedError,
    ProxyError,
)
from sw.guest.scenario import MIRROR_PORTS, PARITY_PORTS, STRIP_KIB, StepError, started
from sw.guest.steps import QUICK, STEPS, data_blocks

SEED = int(os.environ.get("SEED") or "1")
CONFIG = board(8)
VECTORS = CONFIG.queue_pairs + 1
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + 64, latency_ps=5 * MICROSECOND)
CSTS, ASQ = 0x1C, 0x28
LAYOUT = Layout("RAID6", len(PARITY_PORTS), STRIP_KIB * 1024 // BLOCK_BYTES)


@pytest.mark.parametrize("name", ["admin", "admin_page"])
def test_nvme_cli_stands_for_the_driver(name):
    """`sw.driver.raid` may call both alike."""
    ours, drivers = (
        [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for method in (getattr(NvmeCli, name), getattr(Nvme, name))
    )
    assert ours == drivers


@contextmanager
def host(**options):
    """A guest's end of the proxy with the card at the other."""
    with Harness(CONFIG, drives=[FAST] * CONFIG.ports, memory_bytes=4096) as harness:
        guest = GuestHost(harness, VECTORS, **options)
        guest.plug()
        try:
            yield guest
        finally:
            guest.close()


def move(guest: GuestHost, seed: int) -> Array:
    """Random writes and reads of a RAID 5 by the driver, through the proxy."""
    rng = random.Random(seed)

    async def main() -> Array:
        nvme = Nvme(guest)
        await nvme.start(queue_pairs=2, depth=16)
        array = await raid.create_array(nvme, Level.RAID5, range(5), strip_kib=4)
        volume = await raid.create_volume(nvme, array)
        stored: dict[int, bytes] = {}
        for _ in range(40):
            first, blocks = rng.randrange(100), rng.randrange(1, 9)
            # Across the place where the memory's parts meet, at times.
            address = rng.randrange(MIB, 3 * MIB, 4)
            if rng.random() < 0.5:
                data = rng.randbytes(blocks * BLOCK_BYTES)
                guest.memory.write(address, data)
                await nvme.write(volume, first, blocks, address, queue=rng.randrange(2))
                for index in range(blocks):
                    stored[first + index] = data[index * BLOCK_BYTES :][:BLOCK_BYTES]
            else:
                await nvme.read(volume, first, blocks, address, queue=rng.randrange(2))
                for index in range(blocks):
                    expected = stored.get(first + index, bytes(BLOCK_BYTES))
                    read = guest.memory.read(address + index * BLOCK_BYTES, BLOCK_BYTES)
                    assert read == expected, f"block {first + index} differs"
        (found,) = await raid.arrays(nvme)
        await nvme.stop()
        return found

    return guest.run(main())


def test_driver_through_the_proxy():
    """Registers, data in memory of several parts and interrupts all pass through the proxy."""
    print(f"seed {SEED}")
    with host() as guest:
        assert move(guest, SEED).level == Level.RAID5
        guest.settle()
        counters = guest.harness.statistics()
        assert counters["stray_reads"] == counters["stray_writes"] == 0


def test_memory_in_the_wrong_place_is_caught():
    """A card that is told wrong offsets cannot work."""
    with host(shift=MIB) as guest, pytest.raises((AssertionError, TimeoutError, RuntimeError)):
        move(guest, SEED)


def test_memory_that_goes_away():
    """Memory may be mapped anew, and what is no longer mapped is no longer reached."""
    with host() as guest:
        move(guest, SEED)
        guest.map()
        move_again = guest.harness.statistics()["stray_reads"]
        guest.card.map_memory([])
        nvme = Nvme(guest)
        with pytest.raises((AssertionError, RuntimeError)):
            guest.run(nvme.start())
        assert guest.harness.statistics()["stray_reads"] > move_again


def test_interrupts_wait_while_masked():
    """Function mask and bus mastering hold messages back; nothing is lost."""
    with host() as guest:
        nvme = Nvme(guest)
        guest.run(nvme.start())
        guest.settle()
        guest.arrived.clear()
        for offset, length, held, free in ((MSIX + 2, 2, 3 << 14, 1 << 15), (COMMAND, 2, 2, 6)):
            guest.config_write(offset, length, held)
            guest.memory.write(nvme.queues[0].sq_address, bytes(64))  # Flush of namespace 0
            tail = 1 if offset == MSIX + 2 else 2
            guest.memory.write(nvme.queues[0].sq_address + 64, bytes(64))
            guest.bar_write(0x1008, 4, tail)
            guest.settle()
            assert guest.arrived == []
            guest.config_write(offset, length, free)
            guest.settle()
            assert guest.arrived == [1]
            guest.arrived.clear()


def test_registers_of_every_width():
    """Accesses of 1 to 8 bytes touch those bytes and no others."""
    rng = random.Random(SEED)
    with host() as guest:
        model = bytearray(8)
        for _ in range(60):
            length = rng.choice((1, 2, 4, 8))
            offset = rng.randrange(0, 8, length)
            if rng.random() < 0.5:
                value = rng.getrandbits(8 * length)
                guest.bar_write(ASQ + offset, length, value)
                model[offset : offset + length] = value.to_bytes(length, "little")
            else:
                found = guest.bar_read(ASQ + offset, length)
                assert found == int.from_bytes(model[offset : offset + length], "little")
        guest.config_write(COMMAND, 2, 0)
        assert guest.bar_read(ASQ, 4) == 0xFFFF_FFFF
        guest.bar_write(ASQ, 4, 1)
        guest.config_write(COMMAND, 2, 6)
        assert guest.bar_read(ASQ, 8) == int.from_bytes(model, "little")


def test_reset_disables():
    """The bus's reset: no address, not enabled, arrays kept."""
    with host() as guest:
        nvme = Nvme(guest)
        guest.run(nvme.start())
        guest.ask(Message.DEVICE_RESET)
        assert guest.config_read(BAR0, 4) == guest.config_read(COMMAND, 2) == 0
        guest.plug()
        guest.settle()
        assert guest.bar_read(CSTS, 4) == 0
        move(guest, SEED)


def test_function_reset():
    """A function level reset amid commands: what was under way ends unseen, all works again."""
    with host() as guest:
        nvme = Nvme(guest)
        guest.run(nvme.start())
        mirror = raid.create_array(nvme, Level.RAID1, (6, 7), assume_consistent=True)
        array = guest.run(mirror)
        volume = guest.run(raid.create_volume(nvme, array))
        guest.settle()
        guest.arrived.clear()
        place = nvme.queues[0].sq_address
        for entry in range(3):
            write = read_write(Io.WRITE, volume, 2 * entry, 2, MIB, MIB + BLOCK_BYTES)
            guest.memory.write(place + 64 * entry, write.pack(entry))
        guest.bar_write(0x1008, 4, 3)
        for _ in range(20):
            guest.card.advance(50)
        assert guest.arrived == [], "too late to reset"
        guest.config_write(DEVICE_CONTROL, 2, INITIATE_RESET | INITIAL_CONTROL)
        assert guest.card.function_resets == 1
        assert guest.config_read(BAR0, 4) == guest.config_read(COMMAND, 2) == 0
        assert guest.config_read(DEVICE_CONTROL, 2) == INITIAL_CONTROL
        guest.plug()
        assert guest.bar_read(CSTS, 4) == 0
        guest.settle()
        assert guest.arrived == [], "an interrupt of before the reset"
        assert guest.harness.drive_statistics(6)["writes"], "nothing was under way"
        guest.run(nvme.start())
        guest.run(raid.delete_volume(nvme, volume))
        guest.run(raid.delete_array(nvme, array))
        guest.run(nvme.stop())
        move(guest, SEED)


@pytest.mark.parametrize(
    "code", [pytest.param(0, id="128"), pytest.param(1, id="256", marks=pytest.mark.slow)]
)
def test_sizes_are_the_guest_s(code):
    """Card and link keep to the sizes and tags that the guest sets, and no others."""
    control = INITIAL_CONTROL | code << 5 | code << 8
    with host() as guest:
        guest.config_write(DEVICE_CONTROL, 2, control)
        move(guest, SEED)
        counted = guest.harness.statistics()
        # Queue entries, lists and messages are small: most writes have the full size.
        assert 64 << code < counted["up_payload_bytes"] / counted["memory_writes"] <= 128 << code
        guest.config_write(DEVICE_CONTROL, 2, INITIATE_RESET | control)
        # Max_Payload_Size outlives the reset, the rest does not.
        assert guest.config_read(DEVICE_CONTROL, 2) == INITIAL_CONTROL | code << 5


def test_config_space():
    """The BAR says its size, MSI-X how many vectors; what is read-only stays."""
    space = ConfigSpace(VECTORS, Identity())
    first = [space.read(offset, 4) for offset in range(0, CONFIG_BYTES, 4)]
    space.write(BAR0, 4, 0xFFFF_FFFF)
    assert space.read(BAR0, 4) == 0xFFFF_C000
    assert space.read(0x0A, 2) == 0x0108 and space.read(0x09, 1) == 2
    assert space.read(MSIX + 2, 2) == VECTORS - 1
    assert space.read(space.read(0x34, 1), 1) == 0x11
    assert space.read(space.read(MSIX + 1, 1), 2) == EXPRESS_IDENTIFIER
    rng = random.Random(SEED)
    for _ in range(2000):
        length = rng.choice((1, 2, 4))
        space.write(rng.randrange(0, CONFIG_BYTES, length), length, rng.getrandbits(32))
    writable = {COMMAND: 0x0547, 0x0C: 0xFF, BAR0: 0xFFFF_C000, 0x3C: 0xFF, MSIX: 0xC000_0000}
    writable[DEVICE_CONTROL] = 0x7FFF
    for index, value in enumerate(first):
        mask = writable.get(4 * index, 0)
        assert space.read(4 * index, 4) & ~mask == value & ~mask
    assert space.read(CONFIG_BYTES - 1, 4) == 0xFFFF_FFFF
    space.write(DEVICE_CONTROL, 2, INITIATE_RESET)
    assert space.wants_reset and space.read(DEVICE_CONTROL, 2) == 0
    space.reset()
    assert not space.wants_reset
    assert [space.read(offset, 4) for offset in range(0, CONFIG_BYTES, 4)] == first
    assert space.bar is None and not space.bus_master and not space.msix_enable
    with pytest.raises(ValueError, match=r"vectors must be 1\.\.2048, not 0"):
        ConfigSpace(0, Identity())


@pytest.mark.parametrize(
    ("raw", "error", "text"),
    [
        (message(99), ProxyError, "message 99, which is unknown"),
        (message(Message.BAR_READ, bytes(3)), ProxyError, "message 5 has 3 bytes"),
        (message(Message.SYNC_SYSMEM, bytes(8)), ProxyError, "message 0 has 8 bytes"),
        (HEADER.pack(Message.BAR_READ, 0, 1 << 40), ProxyError, "payload of 1099511627776 bytes"),
        (message(Message.BAR_READ, bytes(24))[:20], ProxyClosedError, "QEMU is gone"),
        (b"", ProxyClosedError, "QEMU is gone"),
    ],
)
def test_bad_messages(raw, error, text):
    """What is not in the protocol ends it in one line; the device sees nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(raw)
        ours.shutdown(socket.SHUT_WR)
        proxy = DeviceProxy(theirs, None)  # pyright: ignore[reportArgumentType]
        with pytest.raises(error, match=text):
            proxy.serve()


def test_messages_in_pieces():
    """A message may come in any pieces, and descriptors are not leaked."""
    with host() as guest:
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(5):
            guest.map()
        assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208
        raw = message(Message.CONFIG_READ, CONFIG_ACCESS.pack(0, 0, 2))
        raw += message(Message.BAR_WRITE, BAR_ACCESS.pack(0, 0, 4, True))
        pieces = [raw[n : n + 5] for n in range(0, len(raw), 5)]
        pid = os.fork()
        if pid == 0:
            for piece in pieces:
                guest.connection.sendall(piece)
            os._exit(0)
        guest.proxy.serve()
        guest.proxy.serve()
        os.waitpid(pid, 0)
        answers = guest.connection.recv(100)
        assert answers[16:24] == Identity().vendor.to_bytes(8, "little")
        assert len(answers) == 48


def test_modules_are_loaded_after_what_they_need(tmp_path):
    """The order follows the modules' own lists; what is built in is left out."""
    for name, depends in (
        ("top", "left-side,right"),
        ("left_side", "base"),
        ("right", "base,gone"),
        ("base", ""),
        ("other", ""),
    ):
        content = b"ELF\0name=x\0depends=" + depends.encode() + b"\0retpoline=Y\0"
        (tmp_path / f"{name}.ko").write_bytes(content)
    names = [path.stem for path in modules(tmp_path, ["top", "absent"])]
    assert names == ["base", "left_side", "right", "top"]


def test_archive_is_what_cpio_reads(tmp_path):
    """Names, contents and modes, read back by busybox."""
    try:
        busybox = packages.program("busybox")
    except packages.MissingPackagesError as error:
        pytest.skip(str(error))
    files = Initramfs()
    files.add("/a/b/file", b"contents", 0o755)
    files.add("/a/b/file", b"not again")
    files.link("/link", "a/b/file")
    files.directory("/empty")
    archive = tmp_path / "archive"
    size = files.write(archive)
    assert archive.stat().st_size == size
    place = tmp_path / "out"
    place.mkdir()
    with archive.open("rb") as file:
        subprocess.run([busybox, "cpio", "-i"], stdin=file, cwd=place, check=True)
    assert (place / "link").read_bytes() == b"contents"
    assert (place / "a/b/file").stat().st_mode & 0o777 == 0o755
    assert (place / "empty").is_dir()


def test_missing_packages_are_named(monkeypatch):
    """Without root, the one command that installs them."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name, path: None if name == "fio" else f"/{name}")
    with pytest.raises(packages.MissingPackagesError, match=r"sudo apt-get install -y fio$"):
        packages.install()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--steps", "fly"], "invalid choice: 'fly'"),
        (["--seed", "x"], "must be a number in 0..4294967295, not 'x'"),
        (["--out", "/dev/null/x"], "/dev/null"),
    ],
)
def test_bad_arguments(monkeypatch, capsys, arguments, text):
    """Status 2 and one line."""
    monkeypatch.setattr("sys.argv", ["guest", *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("sw.guest", run_name="__main__")
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("guest: ") and error.count("\n") == 1 and text in error


# A stock Linux


@contextmanager
def linux(directory: Path):
    """A run of the guest, or a skipped test where Debian's packages cannot be had."""
    try:
        _, kernel = packages.prepare(BUILD / "guest")
    except packages.MissingPackagesError as error:
        pytest.skip(str(error))
    print(f"seed {SEED}, logs in {directory}")
    with started(kernel, directory, SEED) as run:
        yield run


def step(name: str):
    """The step of that name."""
    return next(entry for entry in STEPS if entry.name == name)


@pytest.mark.slow
def test_linux_guest(tmp_path):
    """The short form of `make guest`."""
    with linux(tmp_path) as run:
        for name in QUICK:
            print(f"{name}: {run.perform(step(name))}")


@pytest.mark.slow
def test_linux_guest_finds_planted_changes(tmp_path):
    """Changed data, a lost mirror and a missing namespace are found by the checks of the guest."""
    with linux(tmp_path) as run:
        for name in ("boot", "manage", "ext4", "parity"):
            run.perform(step(name))
        load = {"filename": "/dev/nvme0n1", "randseed": SEED}
        assert run.load(1, **load).written
        assert run.load(1, **load, verify_only=1).read

        content = (ROOT / "sw/guest/steps.py").read_bytes()[:BLOCK_BYTES]
        port, block = next(
            (port, block)
            for port in PARITY_PORTS
            for block in run.harness.written_blocks(port)
            if run.harness.read_drive(port, block) == content
        )
        run.harness.write_drive(port, block, content[:-1] + b"?")
        with pytest.raises(StepError, match=r"row \d+: parity is wrong"):
            run.perform(step("parity"))
        run.mount()
        with pytest.raises(StepError, match="sha256sum"):
            run.check_tree()
        run.shell("umount /mnt")

        run.settle()
        for block in data_blocks(run, MIRROR_PORTS[0]):
            for port in MIRROR_PORTS:
                run.harness.write_drive(port, block, bytes(BLOCK_BYTES))
        with pytest.raises(StepError, match="verify: bad"):
            run.load(1, **load, verify_only=1)

        port = PARITY_PORTS[LAYOUT.map(0).position]
        run.harness.write_drive(port, DATA_OFFSET_BLOCKS, bytes(BLOCK_BYTES))
        with pytest.raises(StepError, match="e2fsck"):
            run.shell("echo 3 > /proc/sys/vm/drop_caches; e2fsck -f -n /dev/nvme0n2")
        with pytest.raises(StepError, match="nvme list says"):
            run.perform(step("identify"))
