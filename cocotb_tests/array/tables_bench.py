"""`hdl.array.tables.tables.ArrayTables` beside its model: drives, requests, every entry read."""

import os
import random

from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.array.tables_model import Model
from cocotb_tests.runner import simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, unpack
from hdl.array.tables.migrations import MIGRATION_READERS
from hdl.array.tables.tables import ArrayTables
from hdl.config import MAX_DRIVES, Config, small
from hdl.flow.geometry import Level, RotationBits, geometry
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.flow.reference import reference
from hdl.flow.table_read import migration, port_use, volume
from sim.card.layouts import rotation_fields, rotation_of

CONFIGS = {
    "board": Config(ports=24, parities=3, intent_chunks=32),
    "full": Config(ports=32, arrays=4),
    "small": small(),
}
METADATA = "metadata"
"""The configuration of tables that bring up arrays, which is not one of `CONFIGS`."""
METADATA_CONFIG = Config(ports=20, arrays=4, parities=3, intent_chunks=32, metadata=True)
READERS = 2
TAKES_DRIVE = (ManageOpcode.REPLACE, ManageOpcode.RE_ADD, ManageOpcode.MIGRATE)
"""With these a drive is stale from then on, or a migration target."""
CHANGE_CYCLES = 1400


class Bench:
    """Drives, requests, and a look at every entry after each change."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.model = Model(config)
        self.requests = StreamSource(dut, "changes__request", layout=manage_request(config))
        refused = {f"{one.name}:index": "nothing was changed" for one in ManageStatus if one.value}
        self.responses = StreamSink(
            dut, "changes__response", layout=manage_response(config), ignores=refused
        )
        self.fail = StreamSource(dut, "fail")
        self.quiesces = StreamSink(
            dut, "quiesce", layout=reference(config), callback=self._quiesce, active=0.3
        )
        if config.background:
            self.flushes = StreamSink(dut, "flush", callback=self._flush, active=0.3)
            self.flushed = StreamSource(dut, "flushed")
            self.rewinds = StreamSink(dut, "rewind", callback=self._rewind, active=0.3)
            self.rewound: list[int] = []
        if config.metadata:
            self.wipes = StreamSink(dut, "wipe", callback=self._wipe, active=0.3)
            self.wiped = StreamSource(dut, "wiped")
        self.seen: dict[ManageStatus, int] = dict.fromkeys(ManageStatus, 0)
        dut.present.value = 0
        self.reserve(0)
        for port in range(config.ports):
            getattr(dut, f"capacity__{port}").value = 0
            self.name(port, 0)

    def _quiesce(self, seen) -> None:
        assert seen == self.model.quiesced.pop(0), f"{seen} must have nothing inside"

    def _flush(self, ports: int) -> None:
        assert ports == self.model.flushes.pop(0), f"{ports:#b} are flushed"
        self.flushed.send(ports & ~self.model.refusing & ~sample(self.dut.drives__failed))

    def _wipe(self, port: int) -> None:
        """Before anybody can write to the drive."""
        assert port == self.model.wipes.pop(0), f"{port} is wiped"
        assert not self.rewound, "rows are written already"
        self.wiped.send(~self.model.unwiped >> port & 1)

    def _rewind(self, array: int) -> None:
        """Before there is anything stale, or a migration, and only once."""
        self.rewound.append(array)
        self.stale_before = sample(self.dut.drives__stale)

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
            self.dut.decisions__reserved.value = ports

    async def change(self, opcode: ManageOpcode, **fields) -> ManageStatus:
        """Makes a change and compares the answer."""
        request = dict.fromkeys(
            ("array", "volume", "level", "strip_shift", "copies", "spans", "rotation", "drives"),
            0,
        )
        request |= {"start": 0, "blocks": 0} | fields
        self.requests.send(opcode=opcode, **request)
        if self.config.background:
            self.rewound.clear()
            stale = self.model.stale
        status, index = getattr(self.model, opcode.name.lower())(request)
        self.model.watch()
        answer = await self.answer()
        assert answer.status == status, f"{opcode} {request}: {answer.status}, expected {status}"
        assert index is None or answer.index == index
        assert not self.model.quiesced, f"{opcode}: who is inside was not waited for"
        assert not self.model.flushes, f"{opcode}: drives were not flushed"
        assert not self.model.wipes, f"{opcode}: a drive was not wiped"
        if self.config.background:
            joins = opcode in TAKES_DRIVE and status == ManageStatus.DONE
            assert self.rewound == [request["array"]] * joins, f"{opcode}: {status}"
            assert not joins or self.stale_before == stale, "stale, and the boundary is anywhere"
        self.seen[status] += 1
        return status

    async def answer(self):
        """The answer to a change. The tables preview nothing."""
        answer = await self.responses.receive(cycles=CHANGE_CYCLES)
        assert not self.config.metadata or not answer.drives, "no preview"
        return answer

    async def look(self, name: str, shape, address: int, readers: int | None) -> list:
        """The entry at ``address``, as each reader sees it."""
        ports = [name] if readers is None else [f"{name}__{reader}" for reader in range(readers)]
        for port in ports:
            getattr(self.dut, f"{port}__address").value = address
        await RisingEdge(self.dut.clk)
        await FallingEdge(self.dut.clk)
        return [unpack(shape, sample(getattr(self.dut, f"{port}__data"))) for port in ports]

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
                    **({} if config.background else {"assumed": wanted.assumed}),
                    **({"data_offset": wanted.data_offset} if config.metadata else {}),
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
            owner += [n for n, moved in model.migrations.items() if port == moved[1]]
            assert entry.used == len(owner)
            assert not owner or entry.array == owner[0]
        assert sample(self.dut.drives__present) == model.present
        assert sample(self.dut.drives__failed) == model.failed
        if config.background:
            assert sample(self.dut.drives__stale) == model.stale
            for number in range(config.arrays):
                entries = await self.look(
                    "migration_read", migration(config), number, MIGRATION_READERS
                )
                for entry in entries:
                    wanted = model.migrations.get(number)
                    assert entry.valid == (wanted is not None)
                    assert not wanted or (entry.position, entry.port, entry.spare) == wanted


def this_config() -> Config:
    """Configuration of this simulation."""
    return _config(os.environ["CONFIG"])


def _config(name: str) -> Config:
    return METADATA_CONFIG if name == METADATA else CONFIGS[name]


def run_tables(
    config: str, *, module: str, name: str | None = None, testcase: str | None = None
) -> None:
    """Runs the cocotb tests of ``module``, or one of them, on tables of a configuration.

    It is one of `CONFIGS`, or `METADATA`.
    """
    simulate(
        ArrayTables(
            config=_config(config),
            geometry_readers=READERS,
            member_readers=READERS,
            volume_readers=READERS,
        ),
        name=name or f"tables_{config}",
        module=module,
        testcase=testcase,
        parameters={"CONFIG": config},
    )
