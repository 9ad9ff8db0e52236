"""The steps of a run, in their order."""

import re

from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTOR_BYTES
from hdl.flow.geometry import Level
from hdl.flow.manage import Emulation
from hdl.nvme.pages.identify import Identity
from sim import isal
from sim.golden import nvme
from sim.golden.layout import Layout
from sw.driver import raid
from sw.driver.commands import NvmeError
from sw.guest.machine import TREE
from sw.guest.scenario import (
    ANYTHING,
    BLOCKS_PER_MIB,
    INTERRUPTED,
    MIRROR_MIB,
    MIRROR_PORTS,
    PARITY_MIB,
    PARITY_PORTS,
    STRIP_KIB,
    Run,
    Step,
)

BOOT_SECONDS = 240
POWER_OFF_SECONDS = 60
MIRROR, PARITY = "/dev/nvme0n1", "/dev/nvme0n2"
PCI_DRIVER = "/sys/bus/pci/drivers/nvme"
DRIVE_UNAVAILABLE = 0x1C0
STATUS_CODE = 0x7FF
DEGRADED_WARNING = 1 << 2
ASYNC_EVENTS, ALL_WARNINGS_AND_NAMESPACES = 0x0B, 0x11F
TRACING = "/sys/kernel/tracing"
CC, CSTS = 0x14, 0x1C
SHUTDOWN_COMPLETE = 2
RESETS = 3
SPOILT_ROWS = 60
SECTORED_MIB = 32
FULL_SCALE = 3
"""Scale of the loads of a full run."""


def boot(run: Run) -> str:
    """The inbox driver brings the card up."""
    run.machine.boot(BOOT_SECONDS)
    run.wait_for('[ "$(cat /sys/class/nvme/nvme0/state)" = live ]')
    run.wait_for(f"[ -b {MIRROR} ]")
    version = run.shell("uname -r").strip()
    queues = int(run.shell("cat /sys/class/nvme/nvme0/queue_count"))
    run.expect(queues >= 3, f"the driver uses {queues} queues")
    return f"Linux {version}, admin and {queues - 1} I/O queues"


def identify(run: Run) -> str:
    """nvme-cli shows the card and its volumes."""
    identity, serial = Identity(), nvme.serial_number(run.harness.identity)
    fields = ("DevicePath", "PhysicalSize", "SectorSize")
    listed = [[entry[field] for field in fields] for entry in run.cli.json("list", " ")["Devices"]]
    run.expect(listed == [[MIRROR, MIRROR_MIB << 20, BLOCK_BYTES]], f"nvme list says {listed}")
    controller = run.cli.json("id-ctrl")
    for field, expected in (
        ("vid", identity.vendor),
        ("sn", serial),
        ("mn", identity.model),
        ("fr", identity.firmware),
    ):
        found = controller[field]
        found = found.strip() if isinstance(found, str) else found
        run.expect(found == expected, f"id-ctrl: {field} is {found!r}, not {expected!r}")
    namespace = run.cli.json("id-ns", MIRROR)
    run.expect(namespace["nsze"] == MIRROR_MIB * BLOCKS_PER_MIB, "id-ns: wrong size")
    return f"{identity.model} {serial}, {MIRROR} of {MIRROR_MIB} MiB"


def manage(run: Run) -> str:
    """An array and a volume are made, refused and listed with nvme admin-passthru."""
    cli = run.cli
    array = cli.do(
        raid.create_array(
            cli.nvme, Level.RAID6, PARITY_PORTS, strip_kib=STRIP_KIB, assume_consistent=True
        )
    )
    try:
        cli.do(raid.create_array(cli.nvme, Level.RAID5, PARITY_PORTS[:3]))
    except NvmeError as error:
        run.expect(error.status == DRIVE_UNAVAILABLE, f"drives in use: {error}")
    else:
        run.expect(False, "drives of another array were accepted")
    blocks = PARITY_MIB * BLOCKS_PER_MIB
    namespace = cli.do(raid.create_volume(cli.nvme, array, 0, blocks))
    extra = cli.do(raid.create_volume(cli.nvme, array, blocks, BLOCKS_PER_MIB))
    # The card's notices make the driver look for itself.
    run.wait_for(f"[ -b /dev/nvme0n{extra} ]")
    controller = cli.json("id-ctrl")["cntlid"]
    for command, state in (("detach", "! -b"), ("attach", "-b")):
        run.shell(f"nvme {command}-ns {cli.device} --namespace-id={extra} -c {controller}")
        run.wait_for(f"[ {state} /dev/nvme0n{extra} ]")
    cli.do(raid.delete_volume(cli.nvme, extra))
    run.wait_for(f"[ ! -b /dev/nvme0n{extra} ]")
    run.expect(f"/dev/nvme0n{namespace}" == PARITY, f"the volume is namespace {namespace}")
    sectors = int(run.shell(f"cat /sys/block/{PARITY.rpartition('/')[2]}/size"))
    run.expect(sectors == PARITY_MIB * 2048, f"{PARITY} has {sectors} sectors")
    arrays = cli.do(raid.arrays(cli.nvme))
    ports = [[member.port for member in entry.members] for entry in arrays]
    run.expect(ports == [list(MIRROR_PORTS), list(PARITY_PORTS)], f"arrays are on {ports}")
    volumes = cli.do(raid.volumes(cli.nvme))
    run.expect(
        [(entry.array, entry.blocks) for entry in volumes]
        == [(0, MIRROR_MIB * BLOCKS_PER_MIB), (array, blocks)],
        f"volumes are {volumes}",
    )
    drives = cli.do(raid.drives(cli.nvme))
    run.expect(all(drive.present and not drive.failed for drive in drives), f"drives: {drives}")
    return f"RAID 6 of {len(PARITY_PORTS)} drives, {PARITY} of {PARITY_MIB} MiB"


def logs(run: Run) -> str:
    """Log pages and features can be read, reads are counted, and refused commands give their
    reason."""
    before = run.cli.json("smart-log")
    run.expect(before["critical_warning"] == 0, "smart-log: a critical warning")
    reads = 40
    run.shell(f"dd if={MIRROR} of=/dev/null bs=4k count={reads} iflag=direct")
    after = run.cli.json("smart-log")
    counted = int(after["host_read_commands"]) - int(before["host_read_commands"])
    run.expect(counted == reads, f"smart-log counts {counted} reads of {reads}")
    end = MIRROR_MIB * BLOCKS_PER_MIB
    refused = (
        (f"read {MIRROR} -s {end} -c 0 -z {BLOCK_BYTES}", 0x080, end),
        (f"admin-passthru {run.cli.device} --opcode=0xfc", 0x001, 0),
        (f"get-log {run.cli.device} -i 0xee -l 512", 0x109, 0),
    )
    for command, code, _ in refused:
        status, output = run.machine.run(f"nvme {command}")
        found = re.search(r"\((0x[0-9a-f]+)\)", output)
        right = status and found and int(found[1], 16) & STATUS_CODE == code
        run.expect(right, f"nvme {command}: {output.strip()}")
    errors = run.cli.json("error-log")["errors"]
    last = int(run.cli.json("smart-log")["num_err_log_entries"])
    expected = [
        (last - place, code, block) for place, (_, code, block) in enumerate(reversed(refused))
    ]
    logged = [
        (entry["error_count"], entry["status_field"] & STATUS_CODE, entry["lba"])
        for entry in errors[: len(refused)]
    ]
    run.expect(logged == expected, f"error-log has {logged}, not {expected}")
    slots = run.cli.json("fw-log")
    run.expect(Identity().firmware in str(slots), f"fw-log says {slots}")
    cached = run.shell(f"nvme get-feature {run.cli.device} -f 6 | tail -n 1")
    run.expect("00000001" in cached, f"get-feature 6: {cached.strip()}")
    return f"{reads} reads counted, 3 refusals, {last} errors logged"


def zeroes(run: Run) -> str:
    """Write Zeroes clears its blocks and no others. Verify and Flush find nothing wrong."""
    first, count, blocks = 5, 9, 32
    source = f"{TREE}/large/0"
    run.shell(f"dd if={source} of={MIRROR} bs=4k count={blocks} oflag=direct")
    run.shell(f"nvme write-zeroes {MIRROR} -s {first} -c {count - 1}")
    run.shell(f"dd if={MIRROR} of=/tmp/found bs=4k count={blocks} iflag=direct")
    after = first + count
    run.shell(
        f"( dd if={source} bs=4k count={first}; dd if=/dev/zero bs=4k count={count}; "
        f"dd if={source} bs=4k skip={after} count={blocks - after} ) > /tmp/wanted 2> /dev/null; "
        "cmp /tmp/wanted /tmp/found"
    )
    run.shell(f"nvme verify {MIRROR} -s 0 -c {blocks - 1}")
    run.shell(f"nvme flush {MIRROR}")
    return f"{count} of {blocks} blocks cleared"


def ext4(run: Run) -> str:
    """A file system is made, filled, checked and read back from the drives."""
    run.shell(f"mkfs.ext4 -q {PARITY}")
    run.mount()
    run.shell(f"cp -a {TREE} /mnt/tree && sync")
    run.unmount_and_check()
    run.mount()
    files = run.check_tree()
    run.unmount_and_check()
    flushes = min(run.harness.drive_statistics(port)["flushes"] for port in PARITY_PORTS)
    run.expect(flushes, "no flush of the file system has reached the drives")
    return f"{files} files copied, fsck and checksums agree, {flushes} flushes a drive"


def sectors(run: Run) -> str:
    """A volume of 512-byte sectors: format, single sectors, a file system of 1 KiB blocks."""
    cli = run.cli
    (array,) = (one.number for one in cli.do(raid.arrays(cli.nvme)) if one.level == Level.RAID6)
    namespace = cli.do(
        raid.create_volume(
            cli.nvme,
            array,
            PARITY_MIB * BLOCKS_PER_MIB,
            SECTORED_MIB * BLOCKS_PER_MIB,
            sector_bytes=SECTOR_BYTES,
            emulation=Emulation.FORCE,
        )
    )
    device = f"/dev/nvme0n{namespace}"
    run.wait_for(f"[ -b {device} ]")
    found = cli.json("id-ns", device)
    chosen = found["lbafs"][found["flbas"] & 0xF]
    run.expect(1 << chosen["ds"] == SECTOR_BYTES, f"id-ns: the format is {chosen}")
    run.expect(found["nsze"] == SECTORED_MIB << 11, f"id-ns: {found['nsze']} sectors")
    for name, expected in (("logical", SECTOR_BYTES), ("physical", BLOCK_BYTES)):
        path = f"/sys/block/{device.rpartition('/')[2]}/queue/{name}_block_size"
        size = int(run.shell(f"cat {path}"))
        run.expect(size == expected, f"{path} is {size}")
    # Single sectors, in an order that is not theirs, between others that stay.
    source = f"{TREE}/large/0"
    run.shell(f"dd if={source} of={device} bs=512 count=64 oflag=direct")
    places = run.rng.sample(range(64), 12)
    writes = "; ".join(
        f"dd if={source} of=$to bs=512 skip={100 + place} seek={place} count=1 conv=notrunc $how"
        for place in places
    )
    run.shell(f"dd if={source} of=/tmp/wanted bs=512 count=64; to=/tmp/wanted how=; {writes}")
    run.shell(f"to={device} how=oflag=direct; {writes}")
    run.shell(
        f"dd if={device} of=/tmp/found bs=512 count=64 iflag=direct; cmp /tmp/wanted /tmp/found"
    )
    run.shell(f"mkfs.ext4 -q -b 1024 {device}")
    run.mount(device)
    run.shell(f"cp -a {TREE} /mnt/tree && sync")
    files = run.check_tree()
    run.unmount_and_check(device)
    cli.do(raid.delete_volume(cli.nvme, namespace))
    run.wait_for(f"[ ! -b {device} ]")
    return f"{len(places)} single sectors, {files} files on blocks of 1 KiB"


def data_blocks(run: Run, port: int) -> list[int]:
    """Blocks of a member that hold something, without those before the rows."""
    return [block for block in run.harness.written_blocks(port) if block >= DATA_OFFSET_BLOCKS]


def parity_rows(run: Run) -> set[int]:
    """Rows of the RAID 6 that hold something."""
    return {
        block - DATA_OFFSET_BLOCKS for port in PARITY_PORTS for block in data_blocks(run, port)
    }


def parity(run: Run) -> str:
    """Past the controller, P and Q of every row on the drives are ISA-L's."""
    run.shell("sync")
    run.settle()
    layout = Layout("RAID6", len(PARITY_PORTS), STRIP_KIB * 1024 // BLOCK_BYTES)
    rows = parity_rows(run)
    for row in sorted(rows):
        held = [
            run.harness.read_drive(PARITY_PORTS[place], DATA_OFFSET_BLOCKS + row)
            for place in layout.roles(0, row)
        ]
        expected = isal.pq(held[: layout.data])
        run.expect(tuple(held[layout.data :]) == tuple(expected), f"row {row}: parity is wrong")
    run.expect(rows, "no row was written")
    for block in data_blocks(run, MIRROR_PORTS[0]):
        copies = {run.harness.read_drive(port, block) for port in MIRROR_PORTS}
        run.expect(len(copies) == 1, f"block {block}: the copies differ")
    return f"ISA-L agrees on {len(rows)} rows"


def load(run: Run) -> str:
    """fio verifies random mixed accesses of a raw volume, and of a file with polled queues."""
    raw = run.load(4, filename=MIRROR)
    run.mount()
    before = run.card.interrupts
    polled = run.load(4, filename="/mnt/load", ioengine="io_uring", hipri=1)
    interrupts = run.card.interrupts - before
    run.expect(
        interrupts < polled.commands // 2,
        f"{interrupts} interrupts for {polled.commands} commands on polled queues",
    )
    run.unmount_and_check()
    return f"{raw}; polled: {polled}"


def reset(run: Run) -> str:
    """Controller resets under load lose nothing. The driver repeats outstanding commands."""
    run.mount()
    with run.loaded(6, filename="/mnt/load", fsync=32) as fio:
        for number in range(1, RESETS + 1):
            fio.still_running(f"reset {number}")
            run.shell(f"nvme reset {run.cli.device}")
            run.wait_for('[ "$(cat /sys/class/nvme/nvme0/state)" = live ]')
            if number < RESETS:
                fio.progress()
        said = fio.finish()
    run.check_tree()
    run.unmount_and_check()
    return f"{RESETS} resets, {said}"


def function_reset(run: Run) -> str:
    """Function level resets under load. The hard block's configuration and all queues are gone."""
    device = "/sys/class/nvme/nvme0/device"
    methods = run.shell(f"cat {device}/reset_method").split()
    run.expect("flr" in methods, f"the kernel would reset the card by {methods}")
    run.shell(f"echo flr > {device}/reset_method")
    before = run.card.function_resets
    run.mount()
    with run.loaded(6, filename="/mnt/load", fsync=32) as fio:
        for number in range(1, RESETS + 1):
            fio.still_running(f"reset {number}")
            run.shell(f"echo 1 > {device}/reset")
            run.wait_for('[ "$(cat /sys/class/nvme/nvme0/state)" = live ]')
            if number < RESETS:
                fio.progress()
        said = fio.finish()
    done = run.card.function_resets - before
    run.expect(done == RESETS, f"the card has seen {done} function level resets")
    run.check_tree()
    run.unmount_and_check()
    return f"{RESETS} resets, {said}"


def rebind(run: Run) -> str:
    """The driver is taken away under load and comes back. The stored data is still there."""
    address = run.shell("basename $(readlink -f /sys/class/nvme/nvme0/device)").strip()
    with run.loaded(16, filename=MIRROR) as fio:
        fio.still_running("the driver went")
        run.shell(f"echo {address} > {PCI_DRIVER}/unbind")
        run.expect(run.machine.run(f"[ -b {MIRROR} ]")[0], f"{MIRROR} is still there")
        fio.fail()
    run.shell(f"echo {address} > {PCI_DRIVER}/bind")
    run.wait_for(f"[ -b {MIRROR} ] && [ -b {PARITY} ]")
    run.mount()
    files = run.check_tree()
    run.unmount_and_check()
    return f"fio got errors, {files} files are as they were"


def medium(run: Run) -> str:
    """Two blocks of each of many rows become unreadable. The guest notices nothing."""
    rows = sorted(parity_rows(run))
    before = _drive_errors(run)
    spoilt = [
        (port, DATA_OFFSET_BLOCKS + row)
        for row in run.rng.sample(rows, min(len(rows), SPOILT_ROWS))
        for port in run.rng.sample(PARITY_PORTS, 2)
    ]
    for place in spoilt:
        run.harness.medium_error(*place)
    run.mount()
    files = run.check_tree()
    run.unmount_and_check()
    errors = _drive_errors(run) - before
    run.expect(errors, "no drive has met an unreadable block")
    for place in spoilt:
        run.harness.clear_medium_error(*place)
    arrays = run.cli.do(raid.arrays(run.cli.nvme))
    run.expect(not any(entry.degraded for entry in arrays), f"the card reports {arrays}")
    return f"{errors} read errors of {len(spoilt)} bad blocks, {files} files are as they were"


def _drive_errors(run: Run) -> int:
    return sum(run.harness.drive_statistics(port)["errors"] for port in PARITY_PORTS)


def pull(run: Run) -> str:
    """Two drives of the RAID 6 and one of the RAID 1 are pulled under load."""
    cli = run.cli
    parity_ports = sorted(run.rng.sample(PARITY_PORTS, 2))
    mirror_port = run.rng.choice(MIRROR_PORTS)
    run.shell(
        f"nvme set-feature {cli.device} -f {ASYNC_EVENTS:#x} -v {ALL_WARNINGS_AND_NAMESPACES:#x}; "
        f"mount -t tracefs tracefs {TRACING}; "
        f"echo 1 > {TRACING}/events/nvme/nvme_async_event/enable"
    )
    run.mount()
    with run.loaded(8, filename=f"/mnt/load:{MIRROR}") as fio:
        for port in (*parity_ports, mirror_port):
            fio.still_running(f"drive {port} was pulled")
            run.card.remove(port)
            fio.progress()
        said = fio.finish()
    mirror, array = cli.do(raid.arrays(cli.nvme))
    run.expect(array.degraded and array.missing == 2, f"the card reports {array}")
    run.expect(mirror.degraded and mirror.missing == 1, f"the card reports {mirror}")
    failed = [drive.port for drive in cli.do(raid.drives(cli.nvme)) if drive.failed]
    run.expect(failed == sorted([*parity_ports, mirror_port]), f"failed drives: {failed}")
    trace = run.shell(f"cat {TRACING}/trace")
    run.expect("NVME_AER_SMART" in trace, f"no health event: {trace.strip()[-200:]}")
    warning = cli.json("smart-log")["critical_warning"]
    warning = warning["value"] if isinstance(warning, dict) else warning
    run.expect(warning & DEGRADED_WARNING, f"smart-log: critical warning {warning}")
    run.unmount_and_check()
    run.mount()
    files = run.check_tree()
    run.unmount_and_check()
    return f"drives {failed} pulled, {said}, {files} files are as they were"


def power_off(run: Run) -> str:
    """The driver shuts the controller down in order."""
    run.machine.power_off(POWER_OFF_SECONDS)
    status = run.harness.mmio_read32(CSTS) >> 2 & 3
    requested = run.harness.mmio_read32(CC) >> 14 & 3
    run.expect(requested and status == SHUTDOWN_COMPLETE, f"CSTS.SHST is {status}")
    return "shutdown complete"


FILES = ("manage", "ext4")
STEPS = [
    Step("boot", "stock kernel boots, inbox driver finds the card", boot),
    Step("identify", "nvme list, id-ctrl, id-ns", identify),
    Step("manage", "array and volume by nvme admin-passthru", manage),
    Step("logs", "smart-log, error-log, fw-log, get-feature", logs),
    Step("zeroes", "write-zeroes, verify, flush", zeroes),
    Step("ext4", "mkfs.ext4, copied tree, fsck, checksums", ext4, needs=("manage",)),
    Step("sectors", "512-byte sectors, mkfs.ext4, fsck", sectors, needs=("manage",)),
    Step("load", "fio, random mixed, verified", load, needs=FILES),
    Step("parity", "drives read past the controller", parity, needs=FILES),
    Step("reset", "controller resets under load", reset, FILES, INTERRUPTED),
    Step("flr", "function level resets under load", function_reset, FILES, INTERRUPTED),
    Step("rebind", "driver unbound and bound again under load", rebind, FILES, ANYTHING),
    Step("medium", "unreadable blocks on the drives", medium, needs=FILES),
    Step("pull", "drives pulled under load", pull, needs=FILES),
    Step("power-off", "orderly shutdown", power_off),
]
QUICK = [step.name for step in STEPS if step.name not in ("load", "rebind")]
"""Steps of the short form."""
