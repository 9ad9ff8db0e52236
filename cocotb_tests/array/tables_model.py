"""What the array tables must hold, in plain Python."""

from dataclasses import dataclass

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.geometry import Level, Rotation
from hdl.flow.manage import ManageStatus, MigrationEnd
from sim.card.layouts import rotation_of_name
from sim.golden.layout import ROTATIONS, Layout

ROTATION_NAMES = {rotation_of_name(name): name for name in ROTATIONS}


@dataclass
class ModelArray:
    """An array of the model."""

    layout: Layout
    members: list[int]
    rows: int
    assumed: int
    data_offset: int

    @property
    def blocks(self) -> int:
        return self.layout.blocks(self.rows)


def tolerates(layout: Layout, away: set[int]) -> bool:
    """Whether every block is to be had without the members at the positions ``away``."""
    if layout.parities:
        spans = range(0, layout.width * layout.spans, layout.width)
        return all(
            len(away & set(range(first, first + layout.width))) <= layout.parities
            for first in spans
        )
    # After as many strips as there are drives the places are those of the first again.
    blocks = range(0, layout.width * layout.strip_blocks, layout.strip_blocks)
    return all({place.position for place in layout.copies_of(block)} - away for block in blocks)


class Model:
    """What the tables must hold, in plain Python."""

    def __init__(self, config: Config):
        self.config = config
        self.arrays: dict[int, ModelArray] = {}
        self.volumes: dict[int, tuple[int, int, int]] = {}
        self.migrations: dict[int, tuple[int, int, int]] = {}
        self.present = 0
        self.lost = 0
        self.broken = 0
        """Drives that were given up, and are there."""
        self.stale = 0
        self.reserved = 0
        self.ends: set[MigrationEnd] = set()
        self.refusing = 0
        """Drives that do not flush."""
        self.flushes: list[int] = []
        """What is to be flushed, by ports."""
        self.unwiped = 0
        """Drives that do not store that they are nobody's."""
        self.wipes: list[int] = []
        """Ports whose drives are to say so."""
        self.quiesced: list[dict[str, int]] = []
        """What must have nothing inside before the change goes on."""
        self.capacity = [0] * config.ports
        self.identity = [0] * MAX_DRIVES
        self.known = [0] * MAX_DRIVES
        """Identities of the drives as they became members."""
        self.placed = [(0, 0, 0)] * MAX_DRIVES
        """Of an array that is brought up: the position of the drive at each port, and if it is
        failed, or stale."""

    @property
    def used(self) -> int:
        members = sum(1 << port for array in self.arrays.values() for port in array.members)
        return members | sum(1 << port for _, port, _ in self.migrations.values())

    @property
    def failed(self) -> int:
        return (~self.present & (1 << MAX_DRIVES) - 1) | self.lost

    def watch(self) -> None:
        """Drives in use that are absent are lost; others only if they were given up."""
        self.broken &= self.present
        self.lost |= self.used & ~self.present
        self.lost &= self.used | self.broken
        self.stale &= self.used & self.present & ~self.lost

    def fail(self, port: int) -> None:
        """A drive is reported."""
        self.lost |= self.used & 1 << port
        self.broken |= self.used & 1 << port
        self.watch()

    def _join(self, ports: int) -> None:
        """Nothing is held against drives that an array takes."""
        self.lost &= ~ports
        self.broken &= ~ports

    def create_array(self, request: dict) -> tuple[ManageStatus, int | None]:
        members = [port for port in range(MAX_DRIVES) if request["drives"] >> port & 1]
        placed, degraded = request.get("placed", 0), request.get("degraded", 0)
        known = (1 << (MAX_DRIVES if placed else self.config.ports)) - 1
        empty = ~self.present & known if degraded else 0
        broken = stale = 0
        if placed:
            members.sort(key=lambda port: self.placed[port][0])
            broken = sum(1 << port for port in members if self.placed[port][1])
            stale = sum(1 << port for port in members if self.placed[port][2]) & ~broken
        taken = self.used | self.reserved | (~self.present & ~empty)
        taken |= 0 if degraded else broken | stale
        if any(taken >> port & 1 for port in members):
            return ManageStatus.DRIVE_UNAVAILABLE, None
        missing = empty | broken
        try:
            level = Level(request["level"]).name
            layout = Layout(
                level,
                len(members),
                1 << request["strip_shift"],
                request["copies"],
                request["spans"] or 1,
                ROTATION_NAMES[Rotation(request["rotation"])],
            )
        except ValueError:
            return ManageStatus.INVALID_FIELD, None
        if layout.parities > self.config.parities:
            return ManageStatus.INVALID_FIELD, None
        away = {place for place, port in enumerate(members) if (missing | stale) >> port & 1}
        if away and not tolerates(layout, away):
            return ManageStatus.DRIVE_UNAVAILABLE, None
        there = [port for port in members if not missing >> port & 1]
        most = [request["blocks"]] if placed else []
        offset = request["start"] if placed else DATA_OFFSET_BLOCKS
        sizes = [*most, *(self.capacity[port] for port in there)]
        rows = layout.rows([size - offset + DATA_OFFSET_BLOCKS for size in sizes])
        if rows == 0:
            return ManageStatus.NO_SPACE, None
        if layout.blocks(rows) >= 1 << BLOCK_NUMBER_BITS:
            return ManageStatus.INVALID_FIELD, None
        number = next((n for n in range(self.config.arrays) if n not in self.arrays), None)
        if number is None:
            return ManageStatus.NO_ENTRY, None
        assumed = request.get("assumed", 0)
        self.arrays[number] = ModelArray(layout, members, rows, assumed, offset)
        for port in members:
            self.known[port] = 0 if missing >> port & 1 else self.identity[port]
        self._join(sum(1 << port for port in members))
        self.lost |= broken
        self.broken |= broken & self.present
        self.stale &= ~sum(1 << port for port in members)
        self.stale |= stale & self.present
        return ManageStatus.DONE, number

    def migrate(self, request: dict) -> tuple[ManageStatus, int | None]:
        status, number = self.join(request, failed=0)
        if status == ManageStatus.DONE:
            self.migrations[number] = request["position"], request["port"], request["spare"]
            self._join(1 << request["port"])
        return status, None

    def end_migration(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["array"]
        if number not in self.arrays or number not in self.migrations:
            return ManageStatus.NO_ENTRY, None
        position, port, spare = self.migrations[number]
        if request["complete"]:
            # Rows of before do not know yet that what they write to either drive has FUA.
            self.quiesce(number)
            self.flush(1 << port, judged=1 << port)
        del self.migrations[number]
        members = self.arrays[number].members
        self.quiesce(number)
        old, end = members[position], MigrationEnd.RELEASED
        if not self.failed >> port & 1 and (self.failed >> old & 1 or request["complete"]):
            end = MigrationEnd.JOINED if request["complete"] else MigrationEnd.STALE
            members[position] = port
            self.stale |= (end == MigrationEnd.STALE) << port
            if end == MigrationEnd.JOINED and not self.failed >> old & 1:
                # Rows of before write both drives; then nobody may refer to the one that leaves.
                self.quiesce(number)
        self.ends.add(end)
        return ManageStatus.DONE, old | end.value << 5 | spare << 7

    def replace(self, request: dict) -> tuple[ManageStatus, int | None]:
        status, number = self.join(request, failed=1)
        if status == ManageStatus.DONE:
            # What refers to the drive: after it has left, or before it is had again.
            self.quiesce(number)
            self.arrays[number].members[request["position"]] = request["port"]
            self.known[request["port"]] = self.identity[request["port"]]
            self._join(1 << request["port"])
            self.stale |= 1 << request["port"]
        return status, number

    def join(self, request: dict, *, failed: int) -> tuple[ManageStatus, int | None]:
        """Whether a drive may take a member's place, which is ``failed`` or not."""
        number, position, port = (request[name] for name in ("array", "position", "port"))
        if number not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        array = self.arrays[number]
        if position >= len(array.members):
            return ManageStatus.INVALID_FIELD, None
        old = array.members[position]
        free = not self.used >> port & 1 or (port == old and self.lost >> port & 1)
        if port >= self.config.ports or not free or (~self.present | self.reserved) >> port & 1:
            return ManageStatus.DRIVE_UNAVAILABLE, None
        if self.failed >> old & 1 != failed:
            return ManageStatus.IN_USE, None
        if self.capacity[port] < array.rows + array.data_offset:
            return ManageStatus.NO_SPACE, None
        if self.config.metadata:
            self.wipes.append(port)
            if self.unwiped >> port & 1:
                if port == old and failed:
                    self.quiesce(number)
                return ManageStatus.DRIVE_UNAVAILABLE, None
        return ManageStatus.DONE, number

    def re_add(self, request: dict) -> tuple[ManageStatus, int | None]:
        number, position = request["array"], request["position"]
        if number not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        if position >= len(self.arrays[number].members):
            return ManageStatus.INVALID_FIELD, None
        port = self.arrays[number].members[position]
        if not self.failed >> port & 1:
            return ManageStatus.IN_USE, None
        identity = self.identity[port]
        if self.present >> port & 1 and (identity != self.known[port] or not identity):
            return ManageStatus.OTHER_DRIVE, None
        return self.replace(request | {"port": port})

    def settle(self, request: dict) -> tuple[ManageStatus, int | None]:
        if request["array"] not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        members = sum(1 << port for port in self.arrays[request["array"]].members)
        migrating = self.migrations.get(request["array"])
        members |= 1 << migrating[1] if migrating else 0
        live = members & ~self.failed
        complete = request.get("complete", 0)
        stale = self.stale & members if complete else 0
        self.flush(live, judged=stale)
        self.stale &= ~stale
        # A stale drive that does not flush has failed, and then it is not all of them.
        joins = not live & self.refusing and (stale or not complete)
        end = MigrationEnd.JOINED if joins else MigrationEnd.RELEASED
        return ManageStatus.DONE, end.value << 5

    def flush(self, ports: int, judged: int) -> int:
        """Drives are flushed, and those that are judged fail if they cannot do it; those that did.
        """
        self.flushes.append(ports)
        stored = ports & ~self.refusing & ~self.failed
        self.lost |= judged & ~stored
        self.broken |= judged & ~stored
        return stored

    def quiesce(self, number: int, *, array: int = 1, goes: int = 0) -> None:
        """Nothing may be inside for an array, or for a volume."""
        self.quiesced.append({"of_array": array, "goes": goes, "number": number})

    def check_empty(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["array"]
        if number not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        used = any(array == number for array, _, _ in self.volumes.values())
        return (ManageStatus.IN_USE if used else ManageStatus.DONE), None

    def delete_array(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["array"]
        if number not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        if any(array == number for array, _, _ in self.volumes.values()):
            return ManageStatus.IN_USE, None
        self.quiesce(number, goes=1)
        del self.arrays[number]
        self.migrations.pop(number, None)
        return ManageStatus.DONE, number

    def create_volume(self, request: dict) -> tuple[ManageStatus, int | None]:
        array, first = request["array"], request["start"]
        if array not in self.arrays:
            return ManageStatus.NO_ENTRY, None
        blocks = self.arrays[array].blocks
        end = first + request["blocks"] if request["blocks"] else blocks
        if first >= blocks or end > blocks:
            return ManageStatus.NO_SPACE, None
        for other, other_start, other_blocks in self.volumes.values():
            if other == array and other_start < end and first < other_start + other_blocks:
                return ManageStatus.NO_SPACE, None
        number = next((n for n in range(self.config.volumes) if n not in self.volumes), None)
        if number is None:
            return ManageStatus.NO_ENTRY, None
        self.quiesce(number, array=0)
        self.volumes[number] = (array, first, end - first)
        return ManageStatus.DONE, number

    def delete_volume(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["volume"]
        if number not in self.volumes:
            return ManageStatus.NO_ENTRY, None
        del self.volumes[number]
        self.quiesce(number, array=0)
        return ManageStatus.DONE, number
