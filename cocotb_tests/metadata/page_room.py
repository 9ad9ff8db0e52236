"""Drive ports and a line store, with what moves pages of metadata between them."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.drive.drives import Drives
from hdl.flow.drive_port import DrivePort
from hdl.memory.store import LineStore
from hdl.metadata.page_mover import PageMover
from hdl.metadata.superblock import kept_read, kept_table
from hdl.metadata.survey import Survey

PAGE_LINE = 5
"""The line that pages pass through."""

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


class SurveyRoom(wiring.Component):
    """The survey on real drive ports, as the controller connects it.

    ``kept_read`` reads what is kept. ``quiet`` says that nothing moves.
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
        connect(m, survey.move, mover.move)
        connect(m, mover.moved, survey.moved)
        connect(m, mover.operation, drives.operation)
        connect(m, drives.finished, mover.finished)
        connect(m, survey.kept_write, kept.write)
        connect(m, flipped(self.kept_read), kept.reads[0])
        for path in range(2):
            connect(m, drives.line_read[path], store.read[path])
            connect(m, drives.line_write[path], store.write[path])
        connect(m, survey.line_read, store.read[2])
        m.d.comb += [
            survey.page_line.eq(PAGE_LINE),
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
