"""Admin commands by way of nvme-cli in the guest.

`NvmeCli` replaces `sw.driver.nvme.Nvme` where only admin commands are used. So the functions of
`sw.driver.raid` manage the card through ``nvme admin-passthru``, the inbox driver and the guest.
"""

import base64
import binascii
import json
import re
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, cast

from sw.driver.commands import IDENTIFY_BYTES, Command, Completion, NvmeError
from sw.driver.nvme import Nvme
from sw.guest.machine import Machine

T = TypeVar("T")
_RESULT = re.compile(r"is Success and result: (0x[0-9a-f]+)")
_STATUS = re.compile(r"NVMe status: .*\((0x[0-9a-f]+)\)")


class NvmeCliError(Exception):
    """nvme-cli failed in a way that is no status of the controller."""


class NvmeCli:
    """nvme-cli on one controller.

    Parameters
    ----------
    machine
        The guest.
    device
        Its character device.
    """

    def __init__(self, machine: Machine, device: str = "/dev/nvme0"):
        self._machine = machine
        self.device = device

    def json(self, command: str, arguments: str = "") -> Any:
        """The output of ``nvme COMMAND DEVICE``, as objects."""
        line = f"nvme {command} {arguments or self.device} -o json"
        status, output = self._machine.run(line)
        try:
            return json.loads(output)
        except ValueError:
            raise NvmeCliError(f"{line}: status {status}: {output.strip()[:200]}") from None

    async def admin(
        self,
        command: Command,
        what: str = "admin command",
        hints: Mapping[int, str] | None = None,
    ) -> Completion:
        """Runs a command without data. Raises `NvmeError` unless it succeeds."""
        output = self._passthru(command, what, "", hints)
        found = _RESULT.search(output)
        if found is None:
            raise NvmeCliError(f"{what}: {output.strip()[:200]}")
        return Completion(int(found[1], 16), 0, 0, 0, 0, 0, 0, False)

    async def admin_page(self, command: Command, what: str = "admin command") -> bytes:
        """Runs a command that returns 4096 bytes."""
        output = self._passthru(
            command,
            what,
            f" --read --data-len={IDENTIFY_BYTES} --raw-binary > /tmp/page 2> /tmp/said "
            "&& base64 /tmp/page || { cat /tmp/said; false; }",
        )
        try:
            page = base64.b64decode("".join(output.split()), validate=True)
        except binascii.Error:
            page = b""
        if len(page) != IDENTIFY_BYTES:
            raise NvmeCliError(f"{what}: {output.strip()[:200]}")
        return page

    def do(self, action: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that awaits only methods of this class."""
        try:
            action.send(None)
        except StopIteration as end:
            return end.value
        raise RuntimeError("the coroutine waits for something else than nvme-cli")

    @property
    def nvme(self) -> Nvme:
        """Itself, as `sw.driver.raid` types it."""
        return cast(Nvme, self)

    def _passthru(
        self, command: Command, what: str, tail: str, hints: Mapping[int, str] | None = None
    ) -> str:
        words = [f"--cdw{n}={value:#x}" for n, value in enumerate(command.dwords, 10)]
        line = f"nvme admin-passthru {self.device} --opcode={command.opcode:#x}"
        status, output = self._machine.run(f"{line} {' '.join(words)}{tail}")
        if status:
            found = _STATUS.search(output)
            if found is None:
                raise NvmeCliError(f"{what}: {output.strip()[:200]}")
            field = int(found[1], 16)
            done = Completion(0, 0, 0, 0, 0, field & 0xFF, field >> 8 & 7, bool(field >> 14 & 1))
            raise NvmeError(what, done, (hints or {}).get(done.status))
        return output
