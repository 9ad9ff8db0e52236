"""NVMe 1.4 log pages and asynchronous events as a host reads them, and their expected contents.

They are written from the specification and share nothing with the hardware.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.golden import nvme

ERROR_LOG, SMART_LOG, FIRMWARE_LOG, CHANGED_NAMESPACES_LOG = 1, 2, 3, 4
ARRAYS_LOG, DEFECTS_LOG, LOST_LOG = 0xC0, 0xC1, 0xC2
ARRAY_ENTRY_BYTES = 64
FINDINGS = 32
ERROR_ENTRY_BYTES = 64
SMART_BYTES = 512
UNIT_BYTES = 512 * 1000
NO_COMMAND = 0xFFFF
RETAIN = 1 << 15

ERROR_EVENT, HEALTH_EVENT, NOTICE_EVENT, VENDOR_EVENT = 0, 1, 2, 7
INVALID_DOORBELL_REGISTER, INVALID_DOORBELL_VALUE = 0, 1
RELIABILITY, TEMPERATURE, SPARE = 0, 1, 2
NAMESPACE_CHANGED = 0

WARN_TEMPERATURE, WARN_DEGRADED = 1 << 1, 1 << 2
NAMESPACE_NOTICES = 1 << 8

LOCATIONS = {
    nvme.INVALID_OPCODE: 0,
    nvme.INVALID_NAMESPACE: 4,
    nvme.INVALID_PRP_OFFSET: 24,
    nvme.LBA_OUT_OF_RANGE: 40,
    nvme.INVALID_QUEUE: 40,
    nvme.INVALID_QUEUE_DELETION: 40,
    nvme.INVALID_LOG_PAGE: 40,
    nvme.NOT_SAVEABLE: 40,
    nvme.INVALID_QUEUE_SIZE: 42,
    nvme.NOT_CHANGEABLE: 44,
    nvme.INVALID_CQ: 46,
    nvme.INVALID_VECTOR: 46,
}
"""Byte of the submission queue entry that each status blames. Other statuses blame none."""


@dataclass(frozen=True, kw_only=True)
class ErrorEntry:
    """An Error Information Log Entry (figure 193)."""

    count: int
    queue: int = NO_COMMAND
    identifier: int = NO_COMMAND
    code: int
    location: int = 0xFFFF
    block: int = 0
    nsid: int = 0

    @classmethod
    def unpack(cls, raw: bytes) -> "ErrorEntry":
        """Reads the 64 bytes. Fields that the controller does not fill in must be 0."""
        count, queue, identifier, status, location, block, nsid = struct.unpack_from(
            "<QHHHHQI", raw
        )
        if any(raw[28:]) or status & 1:
            raise ValueError("reserved bytes of an error log entry are not 0")
        return cls(
            count=count,
            queue=queue,
            identifier=identifier,
            code=status >> 1 & 0x7FF,
            location=location,
            block=block,
            nsid=nsid,
        )


def error_entries(page: bytes) -> list[ErrorEntry]:
    """The valid entries of an error log, newest first. After the first invalid entry all must be
    invalid."""
    entries = []
    for at in range(0, len(page), ERROR_ENTRY_BYTES):
        raw = page[at : at + ERROR_ENTRY_BYTES]
        if not any(raw[:8]):
            if any(page[at:]):
                raise ValueError("an entry follows an invalid one")
            break
        entries.append(ErrorEntry.unpack(raw))
    return entries


@dataclass(frozen=True, kw_only=True)
class Smart:
    """The SMART / Health Information log (figure 194)."""

    warning: int
    kelvin: int
    spare: int
    spare_threshold: int
    used: int
    units_read: int
    units_written: int
    reads: int
    writes: int
    busy_minutes: int
    power_cycles: int
    power_on_hours: int
    unsafe_shutdowns: int
    media_errors: int
    errors: int
    warm_minutes: int
    hot_minutes: int

    @classmethod
    def unpack(cls, raw: bytes) -> "Smart":
        """Reads the 512 bytes. Sensors and reserved bytes must be 0."""
        warning, kelvin, spare, threshold, used = struct.unpack_from("<BHBBB", raw)
        wide = [int.from_bytes(raw[at : at + 16], "little") for at in range(32, 192, 16)]
        warm, hot = struct.unpack_from("<II", raw, 192)
        if any(raw[6:32]) or any(raw[200:]):
            raise ValueError("reserved bytes of the SMART log are not 0")
        return cls(
            warning=warning,
            kelvin=kelvin,
            spare=spare,
            spare_threshold=threshold,
            used=used,
            units_read=wide[0],
            units_written=wide[1],
            reads=wide[2],
            writes=wide[3],
            busy_minutes=wide[4],
            power_cycles=wide[5],
            power_on_hours=wide[6],
            unsafe_shutdowns=wide[7],
            media_errors=wide[8],
            errors=wide[9],
            warm_minutes=warm,
            hot_minutes=hot,
        )


@dataclass
class Logs:
    """The expected contents of the logs after the commands and errors that were reported to this
    object."""

    entries: int
    bytes_read: int = 0
    bytes_written: int = 0
    reads: int = 0
    writes: int = 0
    media_errors: int = 0
    errors: list[ErrorEntry] = field(default_factory=list)

    def io(self, opcode: int, blocks: int, code: int) -> None:
        """A command that the data path has ended."""
        if opcode == nvme.WRITE:
            self.writes += 1
            self.bytes_written += 0 if code else blocks * nvme.PAGE
        else:
            self.reads += 1
            self.bytes_read += 0 if code else blocks * nvme.PAGE

    def error(self, code: int, **fields) -> None:
        """A command that failed, or (without fields) a doorbell that was misused."""
        if code == nvme.UNRECOVERED_READ:
            self.media_errors += 1
        fields.setdefault("location", LOCATIONS.get(code, 0xFFFF))
        self.errors.append(ErrorEntry(count=len(self.errors) + 1, code=code, **fields))

    def check(self, smart: Smart, page: bytes) -> None:
        """Compares both logs with their expected contents."""
        expected = (
            -(-self.bytes_read // UNIT_BYTES),
            -(-self.bytes_written // UNIT_BYTES),
            self.reads,
            self.writes,
            self.media_errors,
            len(self.errors),
        )
        found = (
            smart.units_read,
            smart.units_written,
            smart.reads,
            smart.writes,
            smart.media_errors,
            smart.errors,
        )
        if found != expected:
            raise AssertionError(f"SMART log {found}, expected {expected}")
        newest = self.errors[::-1][: self.entries]
        if error_entries(page) != newest:
            raise AssertionError(f"error log {error_entries(page)}, expected {newest}")


def event(result: int) -> tuple[int, int, int]:
    """Type, information and log page of DW0 of an Asynchronous Event Request (figure 145)."""
    if result & ~0xFF_FF07:
        raise ValueError(f"reserved bits of event {result:#x}")
    return result & 7, result >> 8 & 0xFF, result >> 16


def namespace_list(page: bytes) -> Sequence[int]:
    """The entries of a list of namespaces. They must ascend, and then only zeros may follow."""
    entries = struct.unpack("<1024I", page)
    used = [entry for entry in entries if entry]
    if list(entries[: len(used)]) != sorted(set(used)):
        raise ValueError("a list of namespaces is not in order")
    return used
