"""The device end of QEMU's ``x-pci-proxy-dev``: a PCI device that lives in another process.

Messages go over a Unix stream socket. A message is a header (command, padding, length of the
payload) and then the payload (QEMU 7.2 ``include/hw/remote/mpqemu-link.h``). Layouts are those of a
64-bit little-endian machine.
"""

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

HEADER = struct.Struct("<iiQ")
CONFIG_ACCESS = struct.Struct("<IIi")
BAR_ACCESS = struct.Struct("<QQI?3x")
MOST_REGIONS = 8
REGIONS = struct.Struct(f"<{3 * MOST_REGIONS}Q")
VALUE = struct.Struct("<Q")
DESCRIPTOR_BYTES = struct.calcsize("i")
LARGEST_PAYLOAD = REGIONS.size


class Message(IntEnum):
    """Commands (``MPQemuCmd``)."""

    SYNC_SYSMEM = 0
    RET = 1
    CONFIG_WRITE = 2
    CONFIG_READ = 3
    BAR_WRITE = 4
    BAR_READ = 5
    SET_IRQFD = 6
    DEVICE_RESET = 7


class ProxyClosedError(Exception):
    """QEMU closed its end."""


class ProxyError(Exception):
    """QEMU sent a message that is not in the protocol."""


@dataclass(frozen=True)
class Region:
    """Guest memory: ``size`` bytes at guest address ``address``, ``offset`` bytes into a file."""

    address: int
    size: int
    offset: int
    descriptor: int
    """Open until `Device.map_memory` returns."""


class Device(Protocol):
    """The calls that the messages make on a device."""

    def config_read(self, offset: int, length: int) -> int:
        """Reads configuration space."""
        ...

    def config_write(self, offset: int, length: int, value: int) -> None:
        """Writes configuration space."""
        ...

    def bar_read(self, address: int, length: int) -> int:
        """Reads device memory at a bus address."""
        ...

    def bar_write(self, address: int, length: int, value: int) -> None:
        """Writes device memory at a bus address (posted)."""
        ...

    def reset(self) -> None:
        """Resets the device, as its bus does."""
        ...

    def map_memory(self, regions: Sequence[Region]) -> None:
        """Takes ``regions`` as all of the guest's memory, in place of earlier ones."""
        ...


class DeviceProxy:
    """Serves one device to one QEMU.

    Parameters
    ----------
    connection
        The device's end of the socket pair.
    device
        The device.
    """

    def __init__(self, connection: socket.socket, device: Device):
        self._connection = connection
        self._device = device

    def fileno(self) -> int:
        """The socket, for `select`."""
        return self._connection.fileno()

    def serve(self) -> None:
        """Takes one message and answers it. Waits for one if there is none.

        Raises `ProxyClosedError` and `ProxyError`.
        """
        header, descriptors = self._receive(HEADER.size, MOST_REGIONS)
        try:
            command, _, length = HEADER.unpack(header)
            if length > LARGEST_PAYLOAD:
                raise ProxyError(f"QEMU announces a payload of {length} bytes")
            payload = self._receive(length)[0] if length else b""
            try:
                value = self._execute(command, payload, descriptors)
            except struct.error as error:
                raise ProxyError(f"QEMU's message {command} has {length} bytes") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if value is not None:
            self._answer(value)

    def _execute(self, command: int, payload: bytes, descriptors: list[int]) -> int | None:
        device = self._device
        match command:
            case Message.BAR_WRITE:
                address, value, length, _ = BAR_ACCESS.unpack(payload)
                device.bar_write(address, length, value)
            case Message.BAR_READ:
                address, _, length, _ = BAR_ACCESS.unpack(payload)
                return device.bar_read(address, length)
            case Message.CONFIG_READ:
                offset, _, length = CONFIG_ACCESS.unpack(payload)
                return device.config_read(offset, length)
            case Message.CONFIG_WRITE:
                offset, value, length = CONFIG_ACCESS.unpack(payload)
                device.config_write(offset, length, value)
            case Message.SYNC_SYSMEM:
                numbers = REGIONS.unpack(payload)
                columns = [numbers[n * MOST_REGIONS :] for n in range(3)]
                device.map_memory(
                    [Region(*place) for place in zip(*columns, descriptors, strict=False)]
                )
                return None
            case Message.SET_IRQFD:
                return None  # INTx: the device has none
            case Message.DEVICE_RESET:
                device.reset()
            case _:
                raise ProxyError(f"QEMU sent message {command}, which is unknown")
        return 0

    def _answer(self, value: int) -> None:
        answer = HEADER.pack(Message.RET, 0, VALUE.size) + VALUE.pack(value)
        try:
            self._connection.sendall(answer)
        except OSError as error:
            raise ProxyClosedError(f"QEMU is gone: {error.strerror}") from error

    def _receive(self, length: int, most_descriptors: int = 0) -> tuple[bytes, list[int]]:
        data = b""
        descriptors: list[int] = []
        room = socket.CMSG_SPACE(most_descriptors * DESCRIPTOR_BYTES) if most_descriptors else 0
        while len(data) < length:
            try:
                part, ancillary, _, _ = self._connection.recvmsg(
                    length - len(data), room, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionError:
                part, ancillary = b"", []
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    count = len(content) // DESCRIPTOR_BYTES
                    descriptors += struct.unpack_from(f"{count}i", content)
            if not part:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise ProxyClosedError("QEMU is gone")
            data += part
        return data, descriptors
