"""The backup unit on real drive ports and a line store, as the controller connects it."""

import os

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.drive.drives import Drives
from hdl.flow.backup_pins import BackupPins
from hdl.flow.drive_port import DrivePort
from hdl.flow.line import write_port
from hdl.flow.operation import operation
from hdl.flow.recalled import recalled
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead
from hdl.memory.store import LineStore
from hdl.metadata.superblock import kept_table, kept_write
from hdl.redo.redo import Redo
from hdl.stripe.rows.sequencer import unwritten_bits

SIZES = Config(
    data_width=256,
    ports=4,
    lines=128,
    commands=32,
    rows=128,
    transfer_blocks=8,
    operations=128,
    drive_tags=8,
    arrays=4,
    metadata=True,
    intent_chunks=32,
    backup_blocks=int(os.environ.get("BACKUP_BLOCKS", "700")),
)


class RedoRoom(wiring.Component):
    """`Redo` with drive ports, the last one that of the flash, and lines.

    ``plant`` writes what is kept of superblocks, and ``foul`` lines. Operations are taken while
    ``takes``; ``operation__valid``, ``operation__ready`` and ``operation__payload`` show them. All
    other ports are those of `Redo`.
    """

    def __init__(self, *, config: Config, redo=Redo):
        self._config = config
        super().__init__(
            {
                "drives": Out(DrivePort(config)).array(config.ports),
                "pins": Out(BackupPins()),
                "takes": In(1),
                "plant": In(kept_write(config)),
                "foul": In(write_port(config)),
                "hung": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "surveyed": In(1),
                "known": In(config.ports),
                "used": In(config.ports),
                "reads": Out(1),
                "wanted": In(1),
                "sound": In(MAX_DRIVES),
                "home_read": Out(TableRead(config.port_bits, config.array_bits)),
                "steady": In(config.arrays),
                "clean": In(config.arrays),
                "exposes": In(Pulse(config.array_bits)),
                "unflushed": In(Pulse(config.array_bits)),
                "proven": In(Pulse(config.array_bits)),
                "flushes": In(1),
                "stores": In(1),
                "recalls": Out(1),
                "recalled": In(stream.Signature(recalled(config))),
                "most_unwritten": Out(unwritten_bits(config)),
                "operation__valid": Out(1),
                "operation__ready": Out(1),
                "operation__payload": Out(operation(config)),
                "shuns": Out(config.ports),
                "covered": Out(config.ports),
                "done": Out(1),
                "gives_up": Out(1),
                "failed": Out(1),
                "busy": Out(1),
            }
        )
        self._redo = redo(config=config)

    def elaborate(self, platform) -> Module:
        config, redo = self._config, self._redo
        m = Module()
        m.submodules.redo = redo
        m.submodules.kept = kept = kept_table(config)
        m.submodules.drives = drives = Drives(config=config)
        m.submodules.store = store = LineStore(config=config, readers=3, writers=4)
        for name in ("pins", "home_read", "exposes", "unflushed", "proven", "recalled"):
            inner, outer = getattr(redo, name), flipped(getattr(self, name))
            connect(m, *((inner, outer) if name in ("pins", "home_read") else (outer, inner)))
        connect(m, flipped(self.plant), kept.write)
        connect(m, redo.kept_read, kept.reads[0])
        connect(m, flipped(self.foul), store.write[3])
        connect(m, redo.line_write, store.write[2])
        connect(m, redo.line_read, store.read[2])
        for path in range(2):
            connect(m, drives.line_read[path], store.read[path])
            connect(m, drives.line_write[path], store.write[path])
        connect(m, drives.finished, redo.finished)
        flash = self.drives[config.backup_port]
        present = Cat(port.present for port in self.drives)
        gone = ~present & config.arrays_ports
        inputs = (
            "now", "surveyed", "known", "used", "wanted", "sound", "steady", "clean", "flushes",
            "stores",
        )  # fmt: skip
        outputs = (
            "deadline", "reads", "recalls", "most_unwritten", "shuns", "covered", "done",
            "gives_up", "failed",
        )  # fmt: skip
        m.d.comb += [getattr(redo, name).eq(getattr(self, name)) for name in inputs]
        m.d.comb += [getattr(self, name).eq(getattr(redo, name)) for name in outputs]
        m.d.comb += [
            drives.operation.payload.eq(redo.operation.payload),
            drives.operation.valid.eq(redo.operation.valid & self.takes),
            redo.operation.ready.eq(drives.operation.ready & self.takes),
            self.operation__valid.eq(redo.operation.valid),
            self.operation__ready.eq(redo.operation.ready),
            self.operation__payload.eq(redo.operation.payload),
            redo.present.eq(flash.present),
            redo.capacity.eq(flash.capacity),
            redo.restarted.eq(flash.restarted),
            redo.hangs.eq(self.hung),
            redo.page_line.eq(config.free_lines),
            drives.failed.eq(gone | redo.shuns | (redo.gives_up << config.backup_port)),
            drives.fail.ready.eq(1),
            drives.now.eq(self.now),
            self.busy.eq(redo.busy | drives.busy | store.busy),
        ]
        for outer, inner in zip(self.drives, drives.drives, strict=True):
            connect(m, flipped(outer), inner)
        return m
