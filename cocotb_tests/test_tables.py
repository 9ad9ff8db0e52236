"""Array tables against a model: random changes, legal and not, drives that come and go."""

import gc
import os
import random
from dataclasses import dataclass

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.array_models import rotation_fields, rotation_of, rotation_of_name
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, start, unpack
from hdl.array.copies import COPY_READERS
from hdl.array.identities import Identities
from hdl.array.interface import (
    CopyEnd,
    Level,
    ManageOpcode,
    ManageStatus,
    Rotation,
    RotationBits,
    copy_entry,
    geometry,
    manage_request,
    manage_response,
    port_use,
    volume,
)
from hdl.array.tables import ArrayTables
from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config, small
from sim.golden.layout import MAX_STRIP_BLOCKS, MIRRORED, PARITIES, ROTATIONS, Layout, rotations

ROTATION_NAMES = {rotation_of_name(name): name for name in ROTATIONS}
CONFIGS = {
    "board": Config(ports=24, parities=3, intent_chunks=32),
    "full": Config(ports=32, arrays=4),
    "small": small(),
}
CHANGES = 260
READERS = 2
CHANGE_CYCLES = 400


@dataclass
class ModelArray:
    """An array of the model."""

    layout: Layout
    members: list[int]
    rows: int

    @property
    def blocks(self) -> int:
        return self.layout.blocks(self.rows)


class Model:
    """What the tables must hold, in plain Python."""

    def __init__(self, config: Config):
        self.config = config
        self.arrays: dict[int, ModelArray] = {}
        self.volumes: dict[int, tuple[int, int, int]] = {}
        self.copies: dict[int, tuple[int, int, int]] = {}
        self.present = 0
        self.lost = 0
        self.stale = 0
        self.reserved = 0
        self.ends: set[CopyEnd] = set()
        self.capacity = [0] * config.ports
        self.identity = [0] * config.ports
        self.known = [0] * config.ports
        """Identities of the drives as they became members."""

    @property
    def used(self) -> int:
        members = sum(1 << port for array in self.arrays.values() for port in array.members)
        return members | sum(1 << port for _, port, _ in self.copies.values())

    @property
    def failed(self) -> int:
        return (~self.present & (1 << MAX_DRIVES) - 1) | self.lost

    def watch(self) -> None:
        """Drives in use that are absent are lost."""
        self.lost |= self.used & ~self.present
        self.stale &= self.used & self.present & ~self.lost

    def fail(self, port: int) -> None:
        """A drive is reported."""
        self.lost |= self.used & 1 << port
        self.watch()

    def create_array(self, request: dict) -> tuple[ManageStatus, int | None]:
        members = [port for port in range(MAX_DRIVES) if request["drives"] >> port & 1]
        if any((self.used | ~self.present | self.reserved) >> port & 1 for port in members):
            return ManageStatus.DRIVE_UNAVAILABLE, None
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
        rows = layout.rows([self.capacity[port] for port in members])
        if rows == 0:
            return ManageStatus.NO_SPACE, None
        if layout.blocks(rows) >= 1 << BLOCK_NUMBER_BITS:
            return ManageStatus.INVALID_FIELD, None
        number = next((n for n in range(self.config.arrays) if n not in self.arrays), None)
        if number is None:
            return ManageStatus.NO_ENTRY, None
        self.arrays[number] = ModelArray(layout, members, rows)
        for port in members:
            self.known[port] = self.identity[port]
        self.lost &= ~sum(1 << port for port in members)
        self.stale &= ~sum(1 << port for port in members)
        return ManageStatus.DONE, number

    def copy(self, request: dict) -> tuple[ManageStatus, int | None]:
        status, number = self.join(request, failed=0)
        if status == ManageStatus.DONE:
            self.copies[number] = request["position"], request["port"], request["spare"]
            self.lost &= ~(1 << request["port"])
        return status, None

    def end_copy(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["array"]
        if number not in self.arrays or number not in self.copies:
            return ManageStatus.NO_ENTRY, None
        position, port, spare = self.copies.pop(number)
        members = self.arrays[number].members
        old, end = members[position], CopyEnd.RELEASED
        if not self.failed >> port & 1 and (self.failed >> old & 1 or request["complete"]):
            end = CopyEnd.JOINED if request["complete"] else CopyEnd.STALE
            members[position] = port
            self.stale |= (end == CopyEnd.STALE) << port
        self.ends.add(end)
        return ManageStatus.DONE, old | end.value << 5 | spare << 7

    def replace(self, request: dict) -> tuple[ManageStatus, int | None]:
        status, number = self.join(request, failed=1)
        if status == ManageStatus.DONE:
            self.arrays[number].members[request["position"]] = request["port"]
            self.known[request["port"]] = self.identity[request["port"]]
            self.lost &= ~(1 << request["port"])
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
        if self.capacity[port] < array.rows + DATA_OFFSET_BLOCKS:
            return ManageStatus.NO_SPACE, None
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
        for port in self.arrays[request["array"]].members:
            self.stale &= ~(1 << port)
        return ManageStatus.DONE, None

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
        del self.arrays[number]
        self.copies.pop(number, None)
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
        self.volumes[number] = (array, first, end - first)
        return ManageStatus.DONE, number

    def delete_volume(self, request: dict) -> tuple[ManageStatus, int | None]:
        number = request["volume"]
        if number not in self.volumes:
            return ManageStatus.NO_ENTRY, None
        del self.volumes[number]
        return ManageStatus.DONE, number


class Bench:
    """Drives, requests, and a look at every entry after each change."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.model = Model(config)
        self.requests = StreamSource(dut, "manage_request", layout=manage_request(config))
        self.responses = StreamSink(dut, "manage_response", layout=manage_response(config))
        self.fail = StreamSource(dut, "fail")
        self.seen: dict[ManageStatus, int] = dict.fromkeys(ManageStatus, 0)
        dut.present.value = 0
        self.reserve(0)
        for port in range(config.ports):
            getattr(dut, f"capacity__{port}").value = 0
            self.name(port, 0)

    def plug(self, port: int, capacity: int | None) -> None:
        """A drive of ``capacity`` blocks comes, or (None) it goes."""
        model = self.model
        if capacity is None:
            model.present &= ~(1 << port)
        else:
            model.present |= 1 << port
            model.capacity[port] = capacity
            getattr(self.dut, f"capacity__{port}").value = capacity
            if self.generator.random() < 0.3 or not model.identity[port]:
                self.name(port, self.generator.choice((0, self.generator.getrandbits(64))))
        self.dut.present.value = model.present
        model.watch()

    def name(self, port: int, identity: int) -> None:
        """The drive at a port is another one; 0: it does not say which."""
        self.model.identity[port] = identity
        if self.config.intent_chunks:
            getattr(self.dut, f"identity__{port}").value = identity

    def reserve(self, ports: int) -> None:
        """No new array may have these ports."""
        if self.config.background:
            self.model.reserved = ports
            self.dut.reserved.value = ports

    async def change(self, opcode: ManageOpcode, **fields) -> ManageStatus:
        """Makes a change and compares the answer."""
        request = dict.fromkeys(
            ("array", "volume", "level", "strip_shift", "copies", "spans", "rotation", "drives"),
            0,
        )
        request |= {"start": 0, "blocks": 0} | fields
        self.requests.send(opcode=opcode, **request)
        status, index = getattr(self.model, opcode.name.lower())(request)
        self.model.watch()
        answer = await self.responses.receive(cycles=CHANGE_CYCLES)
        assert answer.status == status, f"{opcode} {request}: {answer.status}, expected {status}"
        assert index is None or answer.index == index
        self.seen[status] += 1
        return status

    async def look(self, name: str, shape, address: int, readers: int | None) -> list:
        """The entry at ``address``, as each reader sees it."""
        ports = [name] if readers is None else [f"{name}__{reader}" for reader in range(readers)]
        for port in ports:
            getattr(self.dut, f"{port}__address").value = address
        await RisingEdge(self.dut.clk)
        await FallingEdge(self.dut.clk)
        return [unpack(shape, int(getattr(self.dut, f"{port}__data").value)) for port in ports]

    async def compare(self) -> None:
        """Every table and the health of every port equal the model."""
        config, model = self.config, self.model
        for number in range(config.arrays):
            wanted = model.arrays.get(number)
            for entry in await self.look("geometry_read", geometry(config), number, READERS):
                assert entry.valid == (wanted is not None), f"array {number}"
                if wanted is None:
                    continue
                layout = wanted.layout
                assert entry == {
                    "valid": 1,
                    "level": Level[layout.level],
                    "width": layout.width,
                    "data": layout.data,
                    "parities": layout.parities,
                    "copies": layout.copies,
                    "spans": layout.spans,
                    "strip_shift": layout.strip_blocks.bit_length() - 1,
                    "rotate": rotation_fields(layout)["rotate"],
                    "rotation": unpack(RotationBits, rotation_of(layout).value),
                    "rows": wanted.rows,
                    "blocks": wanted.blocks,
                }
            for position, port in enumerate(wanted.members if wanted else []):
                address = number << 5 | position
                for entry in await self.look("member_read", config.port_bits, address, READERS):
                    assert entry == port
        for number in range(config.volumes):
            for entry in await self.look("volume_read", volume(config), number, READERS):
                if number in model.volumes:
                    assert (entry.array, entry.start, entry.blocks) == model.volumes[number]
                assert entry.valid == (number in model.volumes)
        for port in range(MAX_DRIVES):
            (entry,) = await self.look("port_read", port_use(config), port, None)
            owner = [n for n, array in model.arrays.items() if port in array.members]
            owner += [n for n, copy in model.copies.items() if port == copy[1]]
            assert entry.used == len(owner)
            assert not owner or entry.array == owner[0]
        assert int(self.dut.failed.value) == model.failed
        if config.background:
            assert int(self.dut.stale.value) == model.stale
            for number in range(config.arrays):
                for entry in await self.look("copy_read", copy_entry(config), number, COPY_READERS):
                    wanted = model.copies.get(number)
                    assert entry.valid == (wanted is not None)
                    assert not wanted or (entry.position, entry.port, entry.spare) == wanted

    def array_request(self) -> dict:
        """A random array, mostly one that can exist."""
        generator, model = self.generator, self.model
        free = [
            port
            for port in range(self.config.ports)
            if not (model.used | ~model.present) >> port & 1
        ]
        if generator.random() < 0.1:
            free = list(range(MAX_DRIVES))
        level = generator.choice((*Level, *Level, Level.RAID10))
        code = level.value if generator.random() < 0.97 else generator.choice((2, 3, 4, 14))
        count = 1 if level == Level.JBOD else generator.randint(0, min(len(free), 12))
        if generator.random() < 0.2:
            count = len(free)
        spans = generator.choice((0, 0, 1, 2, 3, 4))
        if PARITIES[level.name] == 0 and generator.random() < 0.9:
            spans = generator.choice((0, 1))
        copies = generator.choice((0, 0, 1, 2, 3))
        if level.name not in MIRRORED and generator.random() < 0.9:
            copies = generator.choice((0, 1))
        rotation = rotation_of_name(generator.choice(rotations(level.name))).value
        if generator.random() < 0.1:
            rotation = generator.randrange(16)
        return {
            "level": code,
            "strip_shift": generator.choice((0, 1, 4, 8, 9, generator.randrange(10))),
            "rotation": rotation,
            "copies": copies,
            "spans": spans,
            "drives": sum(1 << port for port in generator.sample(free, min(count, len(free)))),
        }

    def replace_request(self) -> dict:
        """A random replacement: mostly of a failed member, by a drive that is free or was there."""
        generator, model = self.generator, self.model
        number = generator.choice([*model.arrays, generator.randrange(self.config.arrays)])
        members = model.arrays[number].members if number in model.arrays else [0]
        failed = [place for place, port in enumerate(members) if model.failed >> port & 1]
        position = generator.choice([*failed, *failed, generator.randrange(40)])
        free = [port for port in range(self.config.ports) if not model.used >> port & 1]
        old = members[position] if position < len(members) else 0
        port = generator.choice([*free, old, old, generator.randrange(MAX_DRIVES)])
        return {"array": number, "position": position, "port": port}

    async def copy_about(self) -> None:
        """A copy begins, or one ends, with its drives as they are or one of them failed."""
        generator, model = self.generator, self.model
        number = generator.choice([*model.copies, generator.randrange(self.config.arrays)])
        if number in model.copies or generator.random() < 0.1:
            if number in model.copies and generator.random() < 0.5:
                position, port, _ = model.copies[number]
                failing = generator.choice((port, model.arrays[number].members[position]))
                self.fail.send(failing)
                await self.fail.drained()
                model.fail(failing)
            complete = generator.getrandbits(1)
            await self.change(ManageOpcode.END_COPY, array=number, complete=complete)
            return
        for _ in range(3):
            if number in model.copies or number not in model.arrays:
                return
            request = self.replace_request() | {"array": number}
            request["position"] = generator.randrange(len(model.arrays[number].members))
            await self.change(ManageOpcode.COPY, **request, spare=generator.getrandbits(1))

    def volume_request(self) -> dict:
        """A random volume: whole arrays, parts, edges, and some that do not fit."""
        generator, model = self.generator, self.model
        array = generator.choice([*model.arrays, generator.randrange(256)])
        blocks = model.arrays[array].blocks if array in model.arrays else 1000
        inside = generator.randrange(blocks)
        first = generator.choice((0, 0, blocks // 2, blocks - 1, blocks, inside))
        length = generator.choice((0, 1, blocks // 4, blocks - first, blocks - first + 1, blocks))
        return {"array": array, "start": first, "blocks": max(0, length)}


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def holds_what_the_model_holds(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, generator)
    await start(dut)
    sizes = (DATA_OFFSET_BLOCKS, DATA_OFFSET_BLOCKS + 200, 100_000, 1 << 32, (1 << 40) - 1)
    for port in range(config.ports):
        bench.plug(port, generator.choice(sizes[2:4]))
    for step in range(CHANGES):
        draw = generator.random()
        if draw < 0.35:
            await bench.change(ManageOpcode.CREATE_ARRAY, **bench.array_request())
        elif draw < 0.5:
            array = generator.choice([*bench.model.arrays, generator.randrange(256)])
            await bench.change(ManageOpcode.DELETE_ARRAY, array=array)
        elif draw < 0.75:
            await bench.change(ManageOpcode.CREATE_VOLUME, **bench.volume_request())
        elif draw < 0.9:
            number = generator.choice([*bench.model.volumes, generator.randrange(256)])
            await bench.change(ManageOpcode.DELETE_VOLUME, volume=number)
        elif draw < 0.93 or (draw < 0.96 and not config.background):
            port = generator.randrange(config.ports)
            absent = not bench.model.present >> port & 1
            size = generator.choice(sizes) + generator.randrange(MAX_STRIP_BLOCKS)
            bench.plug(port, min(size, (1 << 40) - 1) if absent else None)
        elif draw < 0.96:
            for _ in range(3):
                await bench.change(ManageOpcode.REPLACE, **bench.replace_request())
                if config.intent_chunks:
                    request = bench.replace_request()
                    if generator.random() < 0.5:
                        members = bench.model.arrays.get(request["array"])
                        for port in members.members if members else []:
                            bench.plug(port, bench.model.capacity[port])
                    await bench.change(ManageOpcode.RE_ADD, **request)
            for _ in range(3):
                await bench.copy_about()
            number = generator.choice([*bench.model.arrays, generator.randrange(256)])
            after = generator.choice((ManageOpcode.SETTLE, ManageOpcode.CHECK_EMPTY))
            await bench.change(after, array=number)
            bench.reserve(1 << generator.randrange(MAX_DRIVES) if generator.random() < 0.5 else 0)
        else:
            port = generator.randrange(MAX_DRIVES)
            bench.fail.send(port)
            await bench.fail.drained()
            bench.model.fail(port)
        await RisingEdge(dut.clk)
        if step % 20 == 0 or step == CHANGES - 1:
            await bench.compare()
    assert int(dut.busy.value) == 0, "busy at rest"
    dut._log.info("answers: %s", {status.name: count for status, count in bench.seen.items()})


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def remembers_lost_drives(dut):
    """A drive that was away stays failed until an array is created on it; changes are pulsed."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
    array = {"level": Level.RAID5.value, "strip_shift": 2, "drives": 0b0111}
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    await bench.compare()

    async def pulses(action) -> int:
        action()
        count = 0
        for _ in range(6):
            await RisingEdge(dut.clk)
            count += int(dut.changed.value)
        return count

    assert await pulses(lambda: bench.plug(1, None)) == 1
    assert await pulses(lambda: bench.plug(1, 100_000)) == 0, "a lost drive came back by itself"
    assert bench.model.failed & 0b1111 == 0b0010
    await bench.compare()
    assert await pulses(lambda: bench.plug(3, None)) == 1
    assert await pulses(lambda: bench.plug(3, 100_000)) == 1
    await bench.compare()
    await bench.change(ManageOpcode.DELETE_ARRAY, array=0)
    await bench.compare()
    assert await bench.change(ManageOpcode.CREATE_ARRAY, **array) == ManageStatus.DONE
    assert bench.model.failed & 0b1111 == 0
    await bench.compare()


def tables(config: Config) -> ArrayTables:
    return ArrayTables(
        config=config, geometry_readers=READERS, member_readers=READERS, volume_readers=READERS
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def replaces_members(dut):
    """A member is never seen as a drive that is neither failed nor stale before its rebuild."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(5):
        bench.plug(port, 100_000)
    await bench.change(ManageOpcode.CREATE_ARRAY, level=Level.RAID5.value, drives=0b0111)
    await bench.change(ManageOpcode.CREATE_VOLUME, array=0)
    replace = {"opcode": ManageOpcode.REPLACE, "array": 0, "position": 1}
    assert await bench.change(**replace, port=3) == ManageStatus.IN_USE
    bench.plug(1, None)
    await RisingEdge(dut.clk)
    bench.reserve(1 << 3)
    assert await bench.change(**replace, port=3) == ManageStatus.DRIVE_UNAVAILABLE
    bench.reserve(0)
    assert await bench.change(**replace, port=1) == ManageStatus.DRIVE_UNAVAILABLE
    bench.plug(3, DATA_OFFSET_BLOCKS + 1)
    assert await bench.change(**replace, port=3) == ManageStatus.NO_SPACE
    bench.plug(3, 100_000)

    async def watch() -> None:
        while True:
            dut.member_read__0__address.value = 1
            await RisingEdge(dut.clk)
            await FallingEdge(dut.clk)
            port = int(dut.member_read__0__data.value)
            assert (int(dut.failed.value) | int(dut.stale.value)) >> port & 1, "a good member"

    watching = cocotb.start_soon(watch())
    assert await bench.change(**replace, port=3) == ManageStatus.DONE
    watching.cancel()
    await bench.compare()
    assert bench.model.used & 0b11111 == 0b01101 and bench.model.stale == 0b01000
    assert await bench.change(ManageOpcode.CHECK_EMPTY, array=0) == ManageStatus.IN_USE
    assert await bench.change(ManageOpcode.SETTLE, array=0) == ManageStatus.DONE
    assert bench.model.stale == 0
    await bench.compare()
    # The same drive comes back, and goes while it is rebuilt.
    bench.plug(0, None)
    await RisingEdge(dut.clk)
    bench.plug(0, 100_000)
    again = {"opcode": ManageOpcode.REPLACE, "array": 0, "position": 0, "port": 0}
    assert await bench.change(**again) == ManageStatus.DONE
    await bench.compare()
    bench.fail.send(0)
    await bench.fail.drained()
    bench.model.fail(0)
    await bench.compare()
    assert bench.model.failed & 1 and not bench.model.stale


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_members_back(dut):
    """Only the drive that was the member, once it is there again, and it is stale then."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.intent_chunks:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for port in range(4):
        bench.plug(port, 100_000)
        bench.name(port, 0xABC0 + port)
    await bench.change(ManageOpcode.CREATE_ARRAY, level=Level.RAID5.value, drives=0b0111)
    back = {"opcode": ManageOpcode.RE_ADD, "array": 0, "position": 1}
    assert await bench.change(**back) == ManageStatus.IN_USE
    bench.plug(1, None)
    await RisingEdge(dut.clk)
    assert await bench.change(**back) == ManageStatus.DRIVE_UNAVAILABLE
    bench.plug(1, 100_000)
    for identity in (0xABC3, 0, 0xABC1 | 1 << 63):
        bench.name(1, identity)
        assert await bench.change(**back) == ManageStatus.OTHER_DRIVE
    bench.name(1, 0xABC1)
    assert await bench.change(**back) == ManageStatus.DONE
    assert bench.model.stale == 0b0010 and not bench.model.failed & 0b0010
    await bench.compare()
    # Of a drive that does not say who it is nobody knows that it is the same.
    bench.name(0, 0)
    assert await bench.change(ManageOpcode.SETTLE, array=0) == ManageStatus.DONE
    for port in (0, 3):
        bench.plug(port, None)
        await RisingEdge(dut.clk)
        bench.plug(port, 100_000)
        bench.name(port, 0)
    replaced = {"array": 0, "position": 0, "port": 3}
    assert await bench.change(ManageOpcode.REPLACE, **replaced) == ManageStatus.DONE
    bench.fail.send(3)
    await bench.fail.drained()
    bench.model.fail(3)
    assert await bench.change(**{**back, "position": 0}) == ManageStatus.OTHER_DRIVE
    bench.name(3, 0xABC3)
    assert await bench.change(**{**back, "position": 0}) == ManageStatus.OTHER_DRIVE


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def copies_members(dut):
    """A copy ends as its drives are, and nobody sees the member at both of them or at none."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    array = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.RAID5.value, "drives": 0b0111}
    copy = {"opcode": ManageOpcode.COPY, "array": 0, "position": 1}
    assert await bench.change(ManageOpcode.END_COPY, array=0) == ManageStatus.NO_ENTRY
    for failing, complete, end in (
        ((), 0, CopyEnd.RELEASED),
        ((), 1, CopyEnd.JOINED),
        ((1,), 0, CopyEnd.STALE),
        ((1,), 1, CopyEnd.JOINED),
        ((3,), 0, CopyEnd.RELEASED),
        ((3,), 1, CopyEnd.RELEASED),
        ((1, 3), 1, CopyEnd.RELEASED),
    ):
        for port in range(4):
            bench.plug(port, 100_000)
        assert await bench.change(**array) == ManageStatus.DONE
        assert await bench.change(ManageOpcode.END_COPY, array=0) == ManageStatus.NO_ENTRY
        assert await bench.change(**copy, port=2, spare=0) == ManageStatus.DRIVE_UNAVAILABLE
        assert await bench.change(**copy, port=3, spare=complete) == ManageStatus.DONE
        await bench.compare()
        for port in failing:
            bench.plug(port, None)
        await RisingEdge(dut.clk)
        bench.model.ends.clear()
        seen = set()

        async def watch(seen=seen) -> None:
            dut.member_read__0__address.value = 1
            dut.copy_read__0__address.value = 0
            while True:
                await RisingEdge(dut.clk)
                await FallingEdge(dut.clk)
                entry = unpack(copy_entry(config), int(dut.copy_read__0__data.value))
                seen.add((int(dut.member_read__0__data.value), entry.valid))

        watching = cocotb.start_soon(watch())
        answered = await bench.change(ManageOpcode.END_COPY, array=0, complete=complete)
        for _ in range(3):
            await RisingEdge(dut.clk)
        watching.cancel()
        assert answered == ManageStatus.DONE and bench.model.ends == {end}
        member = 1 if end == CopyEnd.RELEASED else 3
        assert seen == {(1, 1), (member, 0)}
        await bench.compare()
        assert await bench.change(ManageOpcode.DELETE_ARRAY, array=0) == ManageStatus.DONE


@pytest.mark.parametrize("config", CONFIGS)
def test_tables(config):
    simulate(
        tables(CONFIGS[config]),
        name=f"tables_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


def test_planted_bug_is_found(monkeypatch):
    """Strips of 2 MiB are let through."""
    monkeypatch.setattr("hdl.array.admission.MAX_STRIP_SHIFT", 9)
    with pytest.raises(SimulationError, match="holds_what_the_model_holds"):
        simulate(
            tables(CONFIGS["board"]),
            name="tables_allow_long_strips",
            module=__name__,
            testcase="holds_what_the_model_holds",
            parameters={"CONFIG": "board"},
        )


class TakesAnyDrive(Identities):
    """Planted bug: every drive is the one that was there."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.same.eq(1)
        return m


def test_another_drive_is_found(monkeypatch):
    monkeypatch.setattr("hdl.array.tables.Identities", TakesAnyDrive)
    with pytest.raises(SimulationError, match="takes_members_back"):
        simulate(
            tables(CONFIGS["board"]),
            name="tables_take_any_drive",
            module=__name__,
            testcase="takes_members_back",
            parameters={"CONFIG": "board"},
        )


@pytest.mark.filterwarnings("ignore:.*created but never used")
def test_readers_are_checked():
    with pytest.raises(ValueError, match="member_readers must be at least 1"):
        ArrayTables(config=Config(), geometry_readers=1, member_readers=0, volume_readers=1)
    gc.collect()
