"""The data path and the tables around `NvmeFrontEnd`, as its tests need them."""

import random
from collections.abc import Iterator

import cocotb
from cocotb.triggers import ClockCycles, Event, RisingEdge

from cocotb_tests.streams import StreamSource, pack, sample
from hdl.config import Config
from hdl.flow.geometry import Level, geometry
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request
from hdl.flow.table_read import port_use, volume
from sim.golden import nvme
from sim.golden.nvme import PAGE, Sqe

ADMIN_LINES = 3
"""Lines that the allocator offers to the front end; the rest are the data path's."""

KEPT_LINES = 1
"""Of those, the ones that the front end keeps."""

LATENCY = 40
"""Most cycles that the host's memory and the data path take to answer."""


def contents(volume_number: int, block: int) -> bytes:
    """What the data path's volumes hold before they are written."""
    return random.Random(volume_number << 48 | block).randbytes(64) * (PAGE // 64)


CHANGES = {
    ManageOpcode.CREATE_ARRAY: (
        "level", "strip_shift", "copies", "spans", "rotation", "drives", "assumed", "idle",
        "degraded", "initialise", "zero",
    ),
    ManageOpcode.DELETE_ARRAY: ("array",),
    ManageOpcode.CREATE_VOLUME: ("array", "start", "blocks", "sectors", "emulation"),
    ManageOpcode.DELETE_VOLUME: ("volume",),
    ManageOpcode.START_JOB: ("array", "kind", "resume", "start"),
    ManageOpcode.STOP_JOB: ("array",),
    ManageOpcode.SET_RATE: ("rate",),
    ManageOpcode.REPLACE: ("array", "position", "port"),
    ManageOpcode.ADD_SPARE: ("array", "dedicated", "port"),
    ManageOpcode.REMOVE_SPARE: ("port",),
    ManageOpcode.RE_ADD: ("array", "position"),
    ManageOpcode.MIGRATE: ("array", "position", "port", "spare"),
}  # fmt: skip
"""Fields that a change has, besides its opcode."""


def change_ignores(config: Config) -> dict[str, str]:
    """Fields without a meaning in a change to the tables."""
    return {
        f"{opcode.name}:{name}": "no field of this change"
        for opcode, fields in CHANGES.items()
        for name, _ in manage_request(config)
        if name not in ("opcode", *fields)
    }


def wanted_change(config: Config, entry: Sqe, *, volume: int = 0) -> dict:
    """What an admin command asks of the tables, as docs/host-interface.md has its fields.

    ``volume`` is the one that a Namespace Management is about.
    """
    first, second, third, fourth, fifth, *_ = (*entry.dwords, 0, 0, 0, 0, 0)
    opcode = MANAGE_OPCODES.get(entry.opcode, ManageOpcode.DELETE_VOLUME)
    fields = {
        "array": first & 0xFF,
        "volume": first & 0xFF if entry.opcode in MANAGE_OPCODES else volume,
        "level": first & 0xF,
        "assumed": first >> 4 & 1,
        "idle": first >> 5 & 1,
        "degraded": first >> 6 & 1,
        "strip_shift": first >> 8 & 0xF,
        "rotation": first >> 12 & 0xF,
        "copies": first >> 16 & 0x3F,
        "spans": first >> 24 & 0x3F,
        "initialise": first >> 30 & 1,
        "zero": first >> 31,
        "drives": second,
        "start": second | third << 32,
        "blocks": fourth | fifth << 32,
        "sectors": first >> 8 & 1,
        "emulation": first >> 12 & 3,
        "position": first >> 8 & 0xFF,
        "port": second & 0xFF,
        "kind": first >> 8 & 7,
        "resume": first >> 12 & 1,
        "dedicated": first >> 8 & 1,
        "rate": first & 0xFF,
        "spare": second >> 8 & 1,
    }
    names = CHANGES[opcode]
    if not config.sector_emulation:
        names = tuple(name for name in names if name not in ("sectors", "emulation"))
    return {"opcode": opcode} | {name: fields[name] for name in names}


class DataPath:
    """Executes commands in random order and time; blocks are kept per (volume, block).

    ``statuses``: the end of commands that begin at a (volume, block). ``hold``: nothing ends.
    ``manage_answer``: status and index of every change to the tables.
    """

    dut: cocotb.handle.HierarchyObject
    config: Config
    random: random.Random
    fetch: StreamSource
    deliver: StreamSource
    completion: StreamSource
    manage_response: StreamSource

    def _start_data_path(self) -> None:
        self.lines = [bytearray(PAGE) for _ in range(self.config.lines)]
        self.free_lines = list(range(ADMIN_LINES, self.config.lines))
        self.latency = LATENCY
        self.statuses: dict[tuple[int, int], Status] = {}
        self.commands: list = []
        self.written: dict[tuple[int, int], bytes] = {}
        self.hold = False
        self.manage_answer = (ManageStatus.DONE, 0)
        self.manage_requests: list = []
        self.changes: list[dict] = []
        """What has been submitted that asks the tables for a change, in order."""
        self.has_sectors = False
        """A volume of 512-byte sectors has been asked for."""
        self.asks_fua = False
        """A command has been submitted that asks for FUA, or the write cache may be off."""
        self.geometries: dict[int, dict] = {}
        self.volumes: dict[int, dict] = {}
        self.members: dict[tuple[int, int], int] = {}
        self.ports: dict[int, dict] = {}
        self.capacities: dict[int, int] = {}
        self.in_flight = 0
        self.moved = 0
        self._sending: dict[int, list] = {}
        self._moved: dict[int, Event] = {}
        self._ends: dict[int, Status] = {}

    def _command(self, request) -> None:
        assert not request.offset and not any(request.recover.values()), "it was read before"
        assert not request.fua or self.asks_fua, f"nobody has asked for FUA: {request}"
        if request.opcode == HostOpcode.WRITE and self.config.sector_emulation:
            assert not (request.head or request.tail) or self.has_sectors, request
        if request.opcode == HostOpcode.FLUSH:
            assert not (request.fua or request.block or request.blocks), request
        self.commands.append(request)
        cocotb.start_soon(self._execute(request))

    async def _execute(self, request) -> None:
        self.in_flight += 1
        await ClockCycles(self.dut.clk, self.random.randint(1, self.latency))
        while self.hold:
            await RisingEdge(self.dut.clk)
        entry = self.volumes.get(request.volume)
        status = self.statuses.get((request.volume, request.block), Status.SUCCESS)
        count = request.blocks + 1
        if entry is None:
            status = Status.INVALID_NAMESPACE
        elif request.opcode != HostOpcode.FLUSH:
            if request.block + count > entry["blocks"]:
                status = Status.LBA_OUT_OF_RANGE
            elif status == Status.SUCCESS:
                order = list(range(count))
                self.random.shuffle(order)
                moves = [cocotb.start_soon(self._move(request, n)) for n in order]
                results = [await move for move in moves]
                status = max(results, key=lambda result: result != Status.SUCCESS)
        self.completion.send(slot=request.slot, status=status)
        self.in_flight -= 1

    async def _move(self, request, offset: int) -> Status:
        while not self.free_lines:
            await RisingEdge(self.dut.clk)
        line = self.free_lines.pop(self.random.randrange(len(self.free_lines)))
        key = (request.volume, request.block + offset)
        self._moved[line] = Event()
        port = self.fetch
        if request.opcode == HostOpcode.READ:
            port = self.deliver
            self.lines[line][:] = self.written.get(key) or contents(*key)
            self._sending[line] = [request.slot]
        elif self._in_part(request, offset):
            # A block that is written in part begins with what it held.
            self.lines[line][:] = self.written.get(key) or contents(*key)
        port.send(slot=request.slot, offset=offset, line=line)
        await self._moved[line].wait()
        if request.opcode == HostOpcode.WRITE and self._ends[line] == Status.SUCCESS:
            self.written[key] = bytes(self.lines[line])
        self.lines[line][:] = b"\xdd" * PAGE
        self.free_lines.append(line)
        return self._ends[line]

    @staticmethod
    def _in_part(request, offset: int) -> bool:
        head, tail = getattr(request, "head", 0), getattr(request, "tail", 0)
        return bool((offset == 0 and head) or (offset == request.blocks and tail))

    def _fetched(self, answer) -> None:
        self._ends[answer.line] = Status.DATA_TRANSFER_ERROR if answer.error else Status.SUCCESS
        self._moved[answer.line].set()

    def _delivered(self, answer) -> None:
        (slot,) = self._sending.pop(answer.line)
        assert answer.slot == slot, answer
        self._ends[answer.line] = answer.status
        self._moved[answer.line].set()

    # Tables.

    def _submitted(self, entry: Sqe, *, admin: bool) -> None:
        """A command is in a queue."""
        if not admin:
            self.asks_fua |= len(entry.dwords) > 2 and bool(entry.dwords[2] >> 30 & 1)
            return
        self.asks_fua |= entry.opcode == nvme.SET_FEATURES
        if entry.opcode in MANAGE_OPCODES:
            self.changes.append(wanted_change(self.config, entry))
            self.has_sectors |= bool(self.changes[-1].get("sectors"))
        elif entry.opcode == nvme.NAMESPACE_MANAGEMENT:
            every = range(self.config.volumes) if entry.nsid == 0xFFFFFFFF else (entry.nsid - 1,)
            self.changes += [wanted_change(self.config, entry, volume=one) for one in every]

    def _manage(self, request) -> None:
        self._check_change(request)
        self.manage_requests.append(request)
        status, index = self.manage_answer
        self.manage_response.send(status=status, index=index)

    def _check_change(self, request) -> None:
        """Somebody has asked for it; some others that were submitted have been refused."""
        while self.changes and self.changes[0]["opcode"] != request.opcode:
            del self.changes[0]
        while len(self.changes) > 1 and not self._is(request, self.changes[0]):
            del self.changes[0]
        assert self.changes, f"nobody has asked for {request}"
        wanted = self.changes.pop(0)
        assert self._is(request, wanted), f"{request}, not {wanted}"

    @staticmethod
    def _is(request, wanted: dict) -> bool:
        found = {name: request[name] for name in wanted}
        return wanted == {
            name: value.value if name == "emulation" else value for name, value in found.items()
        }

    def _line_write(self, beat) -> None:
        line, number = divmod(beat.address, self.config.beats)
        data = beat.data.to_bytes(self.config.beat_bytes, "little")
        assert beat.mask == (1 << self.config.beat_dwords) - 1
        begin = number * self.config.beat_bytes
        self.lines[line][begin : begin + len(data)] = data

    def _tables(self) -> Iterator[None]:
        """Synchronous reads: data one cycle after the address."""
        dut, config = self.dut, self.config
        tables = (
            ("reads__geometry", geometry(config), lambda a: self.geometries.get(a, {})),
            ("reads__volume", volume(config), lambda a: self.volumes.get(a, {})),
            ("volumes__read", volume(config), lambda a: self.volumes.get(a, {})),
            ("reads__member", None, lambda a: self.members.get((a >> 5, a & 31), 0)),
            ("reads__port", port_use(config), lambda a: self.ports.get(a, {})),
            ("reads__capacity", None, lambda a: self.capacities.get(a, 0)),
            ("report__read", None, report_word),
        )
        handles = [
            (getattr(dut, f"{name}__address"), getattr(dut, f"{name}__data"), layout, look)
            for name, layout, look in tables
        ]
        shown: list = [None] * len(handles)
        exist = -1
        while True:
            yield
            now = sum(1 << number for number in self.volumes)
            if now != exist:
                dut.volumes__exists.value = exist = now
            for number, (address, data, layout, look) in enumerate(handles):
                entry = look(sample(address))
                # To pack an entry takes much longer than to see that it is the one that is shown.
                if entry != shown[number]:
                    shown[number] = entry if layout is None else dict(entry)
                    data.value = entry if layout is None else pack(layout, **entry)


def fresh_geometry(**fields) -> dict:
    """A valid geometry for tables that are only listed."""
    return {
        "valid": 1, "level": Level.RAID5, "width": 4, "data": 3, "parities": 1, "copies": 1,
        "spans": 1, "strip_shift": 4, "rotate": 1, "rows": 1000, "blocks": 3000, **fields,
    }  # fmt: skip


def report_word(address: int) -> int:
    """What stands in the log of background work in tests that do no background work."""
    return (address + 1) * 0x9E3779B1 & 0xFFFF_FFFF


MANAGE_OPCODES = {
    nvme.CREATE_ARRAY: ManageOpcode.CREATE_ARRAY,
    nvme.DELETE_ARRAY: ManageOpcode.DELETE_ARRAY,
    nvme.CREATE_VOLUME: ManageOpcode.CREATE_VOLUME,
    nvme.DELETE_VOLUME: ManageOpcode.DELETE_VOLUME,
    nvme.START_JOB: ManageOpcode.START_JOB,
    nvme.STOP_JOB: ManageOpcode.STOP_JOB,
    nvme.SET_RATE: ManageOpcode.SET_RATE,
    nvme.REPLACE_MEMBER: ManageOpcode.REPLACE,
    nvme.ADD_SPARE: ManageOpcode.ADD_SPARE,
    nvme.REMOVE_SPARE: ManageOpcode.REMOVE_SPARE,
    nvme.RE_ADD: ManageOpcode.RE_ADD,
    nvme.MIGRATE: ManageOpcode.MIGRATE,
}
