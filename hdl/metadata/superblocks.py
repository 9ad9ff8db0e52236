"""The superblocks of all drives: what they are, and changes to them, one drive at a time."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.line import ReadPort, write_port
from hdl.flow.operation import DriveStatus, finished, operation
from hdl.metadata.page_mover import PageMover
from hdl.metadata.superblock import Finding, kept_read, kept_table
from hdl.metadata.superblock_facts import SuperblockFacts
from hdl.metadata.superblock_writer import Edit, SuperblockWriter, superblock_edit
from hdl.metadata.survey import Survey
from hdl.metadata.words import WordWriter


class Superblocks(wiring.Component):
    """Reads the superblock of each drive that comes, and writes those that are asked for.

    An edit waits until no drive is being read, and no drive is read while it lasts. It is for the
    drive that is there as it is offered. If that drive goes, the edit ends with GONE, and nothing
    is written to another one that comes in its place. Afterwards the drive is as known as any
    other. If the edit did not end with GOOD, or the drive has been away since, the drive is read
    again.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    present, capacity
        Of the drive at each port, see `hdl.metadata.survey.Survey`.
    page_line
        A level. A line that nobody else uses.
    edit, facts, done
        See `hdl.metadata.superblock_writer.SuperblockWriter`.
    operation, finished, shuns
        Those of a `hdl.metadata.page_mover.PageMover`.
    line_read, line_write
        Ports of the line store.
    kept_read
        What is kept of superblocks.
    findings, known
        What the drive at each port holds, see `hdl.metadata.survey.Survey`.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "present": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "page_line": In(config.line_bits),
                "edit": In(stream.Signature(superblock_edit(config))),
                "facts": In(SuperblockFacts),
                "done": Out(stream.Signature(DriveStatus)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "shuns": Out(config.ports),
                "line_read": Out(ReadPort(config)),
                "line_write": Out(write_port(config)),
                "kept_read": In(kept_read(config)),
                "findings": Out(Finding).array(config.ports),
                "known": Out(config.ports),
                "busy": Out(1),
            }
        )
        self._survey = Survey(config=config)
        self._writer = SuperblockWriter(config=config)
        self._mover = PageMover(config=config)
        self._words = WordWriter(config=config)
        self._kept = kept_table(config, reads=2)
        self._edit = Signal(superblock_edit(config))
        self._writes = Signal()  # an edit is under way
        self._gone = Signal()  # the drive of the edit that is offered, or under way, has been away

    def elaborate(self, platform) -> Module:
        survey, writer, words = self._survey, self._writer, self._words
        m = Module()
        m.submodules.survey = survey
        m.submodules.writer = writer
        m.submodules.words = words
        m.submodules.mover = self._mover
        m.submodules.kept = self._kept
        connect(m, flipped(self.operation), self._mover.operation)
        connect(m, flipped(self.finished), self._mover.finished)
        connect(m, survey.line_read, flipped(self.line_read))
        connect(m, writer.words, words.words)
        connect(m, words.line_write, flipped(self.line_write))
        m.d.comb += [
            survey.present.eq(self.present),
            survey.page_line.eq(self.page_line),
            writer.page_line.eq(self.page_line),
            words.line.eq(self.page_line),
            writer.facts.eq(self.facts),
            self._mover.gone.eq(Mux(self._writes, self._gone, survey.gone)),
            self.shuns.eq(self._mover.shuns),
            self.known.eq(survey.known),
            self.busy.eq(survey.busy | writer.busy | self._mover.busy),
        ]
        for port, (there, told) in enumerate(zip(self.capacity, self.findings, strict=True)):
            m.d.comb += [survey.capacity[port].eq(there), told.eq(survey.findings[port])]
        self._take_turns(m)
        self._share(m)
        return m

    def _take_turns(self, m: Module) -> None:
        """An edit begins once no drive is read. Then its drive is known, or read again."""
        survey, writer, edit = self._survey, self._writer, self._edit
        ends = writer.done.valid & writer.done.ready
        port = Mux(self._writes, edit.port, self.edit.payload.port)
        is_there = self.present.bit_select(port, 1)
        written = survey.written.payload
        m.d.comb += [
            survey.pause.eq(self.edit.valid | self._writes),
            writer.edit.payload.eq(self.edit.payload),
            writer.edit.valid.eq(self.edit.valid & survey.rests),
            self.edit.ready.eq(writer.edit.ready & survey.rests),
            self.done.payload.eq(writer.done.payload),
            self.done.valid.eq(writer.done.valid),
            writer.done.ready.eq(self.done.ready),
            survey.written.valid.eq(ends),
            written.port.eq(edit.port),
            written.known.eq((writer.done.payload == DriveStatus.GOOD) & ~self._gone & is_there),
            written.finding.eq(Mux(edit.edit == Edit.ERASE, Finding.NONE, Finding.VALID)),
        ]
        m.d.sync += self._gone.eq(
            (self._writes | self.edit.valid) & ~ends & (self._gone | ~is_there)
        )
        with m.If(self.edit.valid & self.edit.ready):
            m.d.sync += [edit.eq(self.edit.payload), self._writes.eq(1)]
        with m.If(ends):
            m.d.sync += self._writes.eq(0)

    def _share(self, m: Module) -> None:
        """The page mover and the table are the writer's during an edit, else the survey's."""
        survey, writer, mover, kept = self._survey, self._writer, self._mover, self._kept
        connect(m, flipped(self.kept_read), kept.reads[1])
        connect(m, writer.kept_read, kept.reads[0])
        for user, has in ((survey, ~self._writes), (writer, self._writes)):
            with m.If(has):
                m.d.comb += [
                    mover.move.payload.eq(user.move.payload),
                    mover.move.valid.eq(user.move.valid),
                    user.move.ready.eq(mover.move.ready),
                    user.moved.valid.eq(mover.moved.valid),
                    mover.moved.ready.eq(user.moved.ready),
                    kept.write.address.eq(user.kept_write.address),
                    kept.write.data.eq(user.kept_write.data),
                    kept.write.enable.eq(user.kept_write.enable),
                ]
            m.d.comb += user.moved.payload.eq(mover.moved.payload)
