"""Drive ports and a line store, with what moves pages of metadata between them."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.drive.drives import Drives
from hdl.flow.drive_port import DrivePort
from hdl.flow.geometry import geometry
from hdl.flow.line import write_port
from hdl.flow.table_read import volume
from hdl.flow.volume_facts import volume_facts
from hdl.kit.table import Table, TableWrite
from hdl.memory.store import LineStore
from hdl.metadata.page_mover import PageMover, moved_page
from hdl.metadata.superblock import kept_read, kept_table, kept_write
from hdl.metadata.superblock_facts import EVENT_BITS, MdShape, SuperblockFacts
from hdl.metadata.superblock_writer import SuperblockWriter, superblock_edit
from hdl.metadata.superblocks import ListReads, Superblocks, edited, member_edit
from hdl.metadata.survey import Survey
from hdl.metadata.words import WordWriter
from hdl.nvme.admin.names import IDENTITY_BITS

FIRST_LINE = 5
"""The first one of the lines that pages pass through."""

SIZES = Config(
    data_width=128,
    ports=4,
    lines=64,
    commands=32,
    rows=32,
    transfer_blocks=8,
    operations=32,
    drive_tags=8,
)
LAST = SIZES.superblock_lines
"""The number of the line of all pages but superblocks that are written."""


class SurveyRoom(wiring.Component):
    """The survey on real drive ports, as the controller connects it.

    ``kept_read`` reads what is kept.
    """

    def __init__(self, *, config: Config, survey=Survey):
        self._config = config
        super().__init__(
            {
                "drives": Out(DrivePort(config)).array(config.ports),
                "kept_read": In(kept_read(config)),
                "known": Out(config.ports),
                "findings": Out(3).array(config.ports),
                "busy": Out(1),
            }
        )
        self._survey = survey(config=config)

    def elaborate(self, platform) -> Module:
        config, survey = self._config, self._survey
        m = Module()
        m.submodules.survey = survey
        m.submodules.kept = kept = kept_table(config)
        m.submodules.mover = mover = PageMover(config=config)
        m.submodules.drives = drives = Drives(config=config)
        m.submodules.store = store = LineStore(config=config, readers=3, writers=2)
        connect(m, mover.operation, drives.operation)
        connect(m, drives.finished, mover.finished)
        connect(m, survey.kept_write, kept.write)
        connect(m, flipped(self.kept_read), kept.reads[0])
        for path in range(2):
            connect(m, drives.line_read[path], store.read[path])
            connect(m, drives.line_write[path], store.write[path])
        connect(m, survey.line_read, store.read[2])
        m.d.comb += [
            survey.page_line.eq(FIRST_LINE + LAST),
            mover.first_line.eq(FIRST_LINE),
            mover.move.payload.page.eq(survey.move.payload),
            mover.move.payload.line.eq(LAST),
            mover.move.valid.eq(survey.move.valid),
            survey.move.ready.eq(mover.move.ready),
            survey.moved.payload.eq(mover.moved.payload.status),
            survey.moved.valid.eq(mover.moved.valid),
            mover.moved.ready.eq(survey.moved.ready),
            mover.gone.eq(survey.gone << LAST),
            drives.failed.eq(~survey.present | mover.shuns),
            self.known.eq(survey.known),
            drives.fail.ready.eq(1),
            self.busy.eq(survey.busy | mover.busy | drives.busy | store.busy),
        ]
        for port, (outer, inner) in enumerate(zip(self.drives, drives.drives, strict=True)):
            connect(m, flipped(outer), inner)
            m.d.comb += [
                survey.present[port].eq(outer.present),
                survey.capacity[port].eq(outer.capacity),
                self.findings[port].eq(survey.findings[port]),
            ]
        return m


class WriterRoom(wiring.Component):
    """The superblock writer on real drive ports, as the controller connects it.

    ``level`` and ``layout`` of ``facts`` follow from ``geometry``. ``line`` is the one that pages
    pass through, and ``foul`` writes lines. ``kept_read`` reads what is kept, and ``plant`` puts
    something else there.
    """

    def __init__(self, *, config: Config, writer=SuperblockWriter):
        self._config = config
        super().__init__(
            {
                "drives": Out(DrivePort(config)).array(config.ports),
                "geometry": In(geometry(config)),
                "facts": In(SuperblockFacts),
                "edit": In(stream.Signature(superblock_edit(config))),
                "line": In(range(config.superblock_lines)),
                "foul": In(write_port(config)),
                "done": Out(stream.Signature(moved_page(config))),
                "kept_read": In(kept_read(config)),
                "plant": In(kept_write(config)),
                "busy": Out(1),
            }
        )
        self._writer = writer(config=config)

    def elaborate(self, platform) -> Module:
        config, writer = self._config, self._writer
        m = Module()
        m.submodules.writer = writer
        m.submodules.shape = shape = MdShape(config=config)
        m.submodules.kept = kept = kept_table(config, reads=2)
        m.submodules.mover = mover = PageMover(config=config)
        m.submodules.words = words = WordWriter(config=config)
        m.submodules.drives = drives = Drives(config=config)
        m.submodules.store = store = LineStore(config=config, readers=2, writers=4)
        connect(m, flipped(self.edit), writer.edit)
        connect(m, mover.moved, flipped(self.done))
        connect(m, flipped(self.foul), store.write[3])
        connect(m, writer.words, words.words)
        connect(m, words.line_write, store.write[2])
        connect(m, mover.operation, drives.operation)
        connect(m, drives.finished, mover.finished)
        for user in (writer.kept_write, self.plant):
            with m.If(user.enable):
                m.d.comb += [
                    kept.write.enable.eq(1),
                    kept.write.address.eq(user.address),
                    kept.write.data.eq(user.data),
                ]
        connect(m, writer.kept_read, kept.reads[0])
        connect(m, flipped(self.kept_read), kept.reads[1])
        for path in range(2):
            connect(m, drives.line_read[path], store.read[path])
            connect(m, drives.line_write[path], store.write[path])
        m.d.comb += [
            shape.geometry.eq(self.geometry),
            writer.facts.eq(self.facts),
            writer.facts.level.eq(shape.level),
            writer.facts.layout.eq(shape.layout),
            writer.line.eq(self.line),
            words.line.eq(FIRST_LINE + self.line),
            mover.first_line.eq(FIRST_LINE),
            mover.move.payload.page.eq(writer.move.payload),
            mover.move.payload.line.eq(self.line),
            mover.move.valid.eq(writer.move.valid),
            writer.move.ready.eq(mover.move.ready),
            drives.fail.ready.eq(1),
            self.busy.eq(writer.busy | mover.busy | drives.busy | store.busy),
        ]
        for outer, inner in zip(self.drives, drives.drives, strict=True):
            connect(m, flipped(outer), inner)
        return m


class SuperblocksRoom(wiring.Component):
    """All that has to do with metadata on real drive ports, as the controller connects it.

    ``volume`` and ``volume_facts`` write the tables of volumes.
    """

    def __init__(self, *, config: Config, superblocks=Superblocks):
        self._config = config
        super().__init__(
            {
                "drives": Out(DrivePort(config)).array(config.ports),
                "geometry": In(geometry(config)),
                "facts": In(SuperblockFacts),
                "edit": In(stream.Signature(member_edit(config))),
                "done": Out(stream.Signature(edited(config))),
                "identity": In(IDENTITY_BITS),
                "generation": In(EVENT_BITS),
                "detached": In(config.volumes),
                "lists": In(ListReads(config)),
                "volume": In(TableWrite(config.volume_bits, volume(config))),
                "volume_facts": In(TableWrite(config.volume_bits, volume_facts())),
                "kept_read": In(kept_read(config)),
                "known": Out(config.ports),
                "findings": Out(3).array(config.ports),
                "busy": Out(1),
            }
        )
        self._superblocks = superblocks(config=config)

    def elaborate(self, platform) -> Module:
        config, superblocks = self._config, self._superblocks
        m = Module()
        m.submodules.superblocks = superblocks
        m.submodules.shape = shape = MdShape(config=config)
        m.submodules.drives = drives = Drives(config=config)
        m.submodules.store = store = LineStore(config=config, readers=3, writers=3)
        connect(m, flipped(self.edit), superblocks.edit)
        connect(m, superblocks.done, flipped(self.done))
        connect(m, flipped(self.lists), superblocks.lists)
        m.submodules.volumes = volumes = Table(volume(config), config.volumes)
        m.submodules.volume_facts = facts = Table(volume_facts(), config.volumes)
        connect(m, flipped(self.volume), volumes.write)
        connect(m, flipped(self.volume_facts), facts.write)
        connect(m, superblocks.volume_read, volumes.reads[0])
        connect(m, superblocks.facts_read, facts.reads[0])
        connect(m, superblocks.operation, drives.operation)
        connect(m, drives.finished, superblocks.finished)
        connect(m, superblocks.line_read, store.read[2])
        connect(m, superblocks.line_write, store.write[2])
        connect(m, flipped(self.kept_read), superblocks.kept_read)
        for path in range(2):
            connect(m, drives.line_read[path], store.read[path])
            connect(m, drives.line_write[path], store.write[path])
        m.d.comb += [
            shape.geometry.eq(self.geometry),
            superblocks.facts.eq(self.facts),
            superblocks.facts.level.eq(shape.level),
            superblocks.facts.layout.eq(shape.layout),
            superblocks.first_line.eq(FIRST_LINE),
            superblocks.identity.eq(self.identity),
            superblocks.generation.eq(self.generation),
            superblocks.detached.eq(self.detached),
            drives.failed.eq(~superblocks.present | superblocks.shuns),
            self.known.eq(superblocks.known),
            drives.fail.ready.eq(1),
            self.busy.eq(superblocks.busy | drives.busy | store.busy),
        ]
        for port, (outer, inner) in enumerate(zip(self.drives, drives.drives, strict=True)):
            connect(m, flipped(outer), inner)
            m.d.comb += [
                superblocks.present[port].eq(outer.present),
                superblocks.capacity[port].eq(outer.capacity),
                self.findings[port].eq(superblocks.findings[port]),
            ]
        return m
