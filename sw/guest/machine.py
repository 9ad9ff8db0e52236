"""The virtual machine: a stock kernel in QEMU with the simulated card on its PCI bus.

One loop serves everything, in `Machine.wait`: QEMU's messages to the card, the simulation, and the
two serial lines. Line 0 is the kernel's console. Line 1 is a shell that runs the host's commands.
"""

import select
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sw.guest.card import BridgedCard
from sw.guest.initramfs import Initramfs, modules
from sw.guest.packages import Kernel, program
from sw.guest.proxy import DeviceProxy, ProxyClosedError, ProxyError

MEMORY_MIB = 768
SLICE_CYCLES = 500
"""Cycles evaluated at a time. They take a few milliseconds, for which a register access of the
guest may wait."""
POLL_SECONDS = 0.2
LINE_BYTES = 1 << 16
EXIT_SECONDS = 10
DONE = "@striata-exit "
READY = "@striata-ready"
TREE = "/tree"

MODULES = [
    "crc32c_generic",
    "crct10dif_generic",
    "crc64_rocksoft_generic",
    "nvme",
    "ext4",
]

INIT = f"""#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
ln -s /proc/mounts /etc/mtab
export PATH=/bin:/sbin:/usr/sbin:/usr/bin HOME=/ LC_ALL=C
while read -r module options; do insmod "$module" $options; done < /modules/order
exec < /dev/ttyS1 > /dev/ttyS1 2>&1
stty raw -echo
echo "{READY}"
while IFS= read -r line; do
    eval "$line"
    printf '\\n{DONE}%d\\n' $?
done
poweroff -f
"""

PANIC = "Kernel panic"
COMMAND_LINE = "console=ttyS0 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on"


class MachineError(Exception):
    """The guest died, or does not answer in time."""


def write_initramfs(path: Path, kernel: Kernel, tree: dict[str, bytes], options: dict) -> int:
    """Writes the guest's file system: programs, modules, and ``tree`` below `TREE`. Returns its
    bytes.

    ``options`` are module parameters, by module.
    """
    files = Initramfs()
    files.add("/init", INIT.encode(), 0o755)
    for directory in ("/proc", "/sys", "/dev", "/tmp", "/mnt", "/etc", "/bin"):
        files.directory(directory)
    files.program(program("busybox"), "/bin/busybox")
    files.link("/bin/sh", "busybox")
    for name in ("nvme", "fio", "mkfs.ext4", "e2fsck"):
        files.program(program(name), f"/usr/sbin/{name}")
    files.copy("/etc/mke2fs.conf")
    order = []
    for module in modules(kernel.modules, MODULES):
        place = f"/modules/{module.name}"
        files.copy(module, place)
        order.append(f"{place} {options.get(module.stem, '')}".strip())
    files.add("/modules/order", "".join(f"{line}\n" for line in order).encode())
    for name, content in tree.items():
        files.add(f"{TREE}/{name}", content)
    return files.write(path)


class SerialLine:
    """A serial line of the guest, kept in a log file."""

    def __init__(self, connection: socket.socket, log: Path):
        connection.setblocking(False)
        self.connection = connection
        self._log = log.open("wb")
        self.text = ""

    def fileno(self) -> int:
        """The socket, for `select`."""
        return self.connection.fileno()

    def take(self) -> None:
        """Reads what is there."""
        try:
            data = self.connection.recv(LINE_BYTES)
        except (BlockingIOError, ConnectionError):
            return
        self._log.write(data)
        self._log.flush()
        self.text += data.decode(errors="replace").replace("\r\n", "\n")

    def send(self, text: str) -> None:
        """Types a line."""
        self.connection.setblocking(True)
        self.connection.sendall(f"{text}\n".encode())
        self.connection.setblocking(False)

    def close(self) -> None:
        """Closes line and log."""
        self.connection.close()
        self._log.close()


class Machine:
    """QEMU with a card; a context manager. QEMU ends with it.

    Parameters
    ----------
    make_card
        Makes the card. Its argument is a function that delivers an interrupt message (address,
        data).
    kernel, initramfs
        What to boot.
    directory
        For the logs ``console.log``, ``shell.log`` and ``qemu.log``.
    """

    def __init__(
        self,
        make_card: Callable[[Callable[[int, int], None]], BridgedCard],
        kernel: Kernel,
        initramfs: Path,
        directory: Path,
    ):
        pairs = {name: socket.socketpair() for name in ("proxy", "qtest", "console", "shell")}
        ours = {name: pair[0] for name, pair in pairs.items()}
        theirs = {name: pair[1].fileno() for name, pair in pairs.items()}
        self.directory = directory
        self._qtest = ours["qtest"]
        self.card = make_card(self._deliver)
        self._proxy = DeviceProxy(ours["proxy"], self.card)
        self._proxy_connection = ours["proxy"]
        self.console = SerialLine(ours["console"], directory / "console.log")
        self._shell = SerialLine(ours["shell"], directory / "shell.log")
        self._open = True
        command = [
            program("qemu-system-x86_64"),
            *("-machine", "q35,accel=tcg,memory-backend=m0,usb=off,vmport=off"),
            *("-object", f"memory-backend-memfd,id=m0,size={MEMORY_MIB}M,share=on"),
            *("-m", f"{MEMORY_MIB}M", "-smp", "1", "-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(kernel.image), "-initrd", str(initramfs), "-append", COMMAND_LINE),
            *("-device", f"x-pci-proxy-dev,id=card,fd={theirs['proxy']}"),
            *("-chardev", f"socket,id=qtest,fd={theirs['qtest']}"),
            *("-qtest", "chardev:qtest", "-qtest-log", "none"),
            *("-chardev", f"socket,id=console,fd={theirs['console']}"),
            *("-serial", "chardev:console"),
            *("-chardev", f"socket,id=shell,fd={theirs['shell']}"),
            *("-serial", "chardev:shell"),
        ]
        self._qemu_log = (directory / "qemu.log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._qemu_log,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(theirs.values()),
        )
        for pair in pairs.values():
            pair[1].close()
        self._poll = select.poll()
        self._servers = {
            self._proxy.fileno(): self._proxy.serve,
            self.console.fileno(): self.console.take,
            self._shell.fileno(): self._shell.take,
            self._qtest.fileno(): self._take_qtest,
        }
        for descriptor in self._servers:
            self._poll.register(descriptor, select.POLLIN)

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends QEMU and closes everything."""
        self._process.kill()
        self._process.wait()
        for connection in (self._proxy_connection, self._qtest):
            connection.close()
        self.console.close()
        self._shell.close()
        self._qemu_log.close()

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Serves guest and card until ``condition()``. Raises `MachineError` after ``seconds``."""
        end = time.monotonic() + seconds
        while not condition():
            if not self._open:
                why = "the kernel panicked" if PANIC in self.console.text else "QEMU is gone"
                raise MachineError(f"{what}: {why}, see {self.directory}")
            if time.monotonic() > end:
                raise MachineError(f"{what}: nothing for {seconds:.0f} s")
            self._serve(0 if not self.card.idle else POLL_SECONDS)
            if not self.card.idle:
                self.card.advance(SLICE_CYCLES)

    def boot(self, seconds: float) -> None:
        """Returns once the guest's shell is ready."""
        self.wait(lambda: READY in self._shell.text, seconds, "boot")
        self._shell.text = ""

    def start(self, command: str) -> None:
        """Sends a line to the shell. `finish` waits for its end."""
        if "\n" in command:
            raise ValueError("a command is one line")
        self._shell.text = ""
        self._shell.send(command)

    def finish(self, seconds: float, what: str) -> tuple[int, str]:
        """Waits for the end of the command. Returns its exit status and output."""
        shell = self._shell
        mark = f"\n{DONE}"
        self.wait(lambda: "\n" in shell.text.partition(mark)[2], seconds, what)
        output, _, status = shell.text.partition(mark)
        return int(status.partition("\n")[0]), output

    def run(self, command: str, seconds: float = 60) -> tuple[int, str]:
        """Runs a line in the guest's shell. Returns its exit status and output."""
        self.start(command)
        return self.finish(seconds, command)

    def power_off(self, seconds: float) -> None:
        """Shuts the guest down. Returns when QEMU has ended."""
        self.start("poweroff -f")
        self.wait(lambda: not self._open, seconds, "power off")
        status = self._process.wait(EXIT_SECONDS)
        if status:
            raise MachineError(f"QEMU ended with status {status}")

    def _serve(self, seconds: float) -> None:
        for descriptor, _ in self._poll.poll(seconds * 1000):
            try:
                self._servers[descriptor]()
            except ProxyClosedError:
                self._open = False
            except ProxyError as error:
                raise MachineError(str(error)) from error

    def _deliver(self, address: int, data: int) -> None:
        # The answer is not waited for: QEMU may itself be waiting for the card.
        try:
            self._qtest.sendall(f"writel {address:#x} {data:#x}\n".encode())
        except OSError:
            self._open = False

    def _take_qtest(self) -> None:
        self._qtest.recv(LINE_BYTES)
