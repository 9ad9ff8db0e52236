"""The metadata of all drives: what it is, and changes to it, one drive at a time."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.line import ReadPort, write_port
from hdl.flow.marks import marks_word
from hdl.flow.operation import DriveStatus, finished, operation
from hdl.flow.table_read import volume_read
from hdl.flow.volume_facts import volume_facts_read
from hdl.kit.pulse import Pulse
from hdl.metadata.bitmap_reader import BitmapReader, BitmapReads
from hdl.metadata.page_mover import PageMover
from hdl.metadata.superblock import Finding, kept_read, kept_table
from hdl.metadata.superblock_facts import EVENT_BITS, UUID_BITS, SuperblockFacts
from hdl.metadata.superblock_writer import Edit, SuperblockWriter, superblock_edit
from hdl.metadata.survey import Survey
from hdl.metadata.volume_list import listed_volume
from hdl.metadata.volume_list_reader import VolumeListReader
from hdl.metadata.volume_list_writer import VolumeListWriter
from hdl.metadata.words import WordWriter
from hdl.nvme.admin.names import IDENTITY_BITS


def member_edit(config: Config) -> data.StructLayout:
    """What is to be written of a member of ``array``: with ``lists`` the list of the array's
    volumes, and after that the superblock."""
    return data.StructLayout(
        {"superblock": superblock_edit(config), "lists": 1, "array": config.array_bits}
    )


class ListReads(wiring.Signature):
    """The lists of volumes of one array, seen from who wants them.

    See `hdl.metadata.volume_list_reader.VolumeListReader`.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "begin": Out(1),
                "set_uuid": Out(UUID_BITS),
                "look": Out(stream.Signature(config.port_bits)),
                "give": Out(1),
                "entries": In(stream.Signature(listed_volume())),
                "seen": In(1),
                "owner": In(IDENTITY_BITS),
                "missed": In(1),
                "generation": In(EVENT_BITS),
            }
        )


class Superblocks(wiring.Component):
    """Reads the superblock of each drive that comes, and lists that are asked for. Writes both.

    An edit waits until no drive is being read, and no drive is read while it lasts. It is for the
    drive that is there as it is offered. If that drive goes, the edit ends with GONE, and nothing
    is written to another one that comes in its place. Afterwards the drive is as known as any
    other. If the edit did not end with GOOD, or the drive has been away since, the drive is read
    again.

    A list goes to the copy that does not hold the drive's newest one. So the newest list that has
    been stored well is there whatever happens to the next one. The superblock is only written once
    the list has been.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    present, capacity
        Of the drive at each port, see `hdl.metadata.survey.Survey`.
    identity
        Of the card.
    page_line
        A level. A line that nobody else uses.
    edit
        What is to be written.
    facts
        A level. What the array's superblocks say, constant until ``done``. Of no meaning to ERASE.
    generation
        A level, alike. That of the list.
    done
        How that ended.
    lists
        Lists of volumes are read. None is asked for while its array is written.
    bitmaps, load, follow
        With `Config.durable_marks`: those of `hdl.metadata.bitmap_reader.BitmapReader`. None is
        asked for while a list is.
    volume_read, facts_read
        The volumes.
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
                "identity": In(IDENTITY_BITS),
                "page_line": In(config.line_bits),
                "edit": In(stream.Signature(member_edit(config))),
                "facts": In(SuperblockFacts),
                "generation": In(EVENT_BITS),
                "done": Out(stream.Signature(DriveStatus)),
                "lists": In(ListReads(config)),
                "bitmaps": In(BitmapReads(config)),
                "load": Out(stream.Signature(marks_word(config))),
                "follow": Out(Pulse(config.array_bits)),
                "volume_read": Out(volume_read(config)),
                "facts_read": Out(volume_facts_read(config)),
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
        self._lists = VolumeListReader(config=config)
        self._bitmaps = BitmapReader(config=config) if config.durable_marks else None
        self._list_writer = VolumeListWriter(config=config)
        self._writer = SuperblockWriter(config=config)
        self._mover = PageMover(config=config)
        self._words = WordWriter(config=config)
        self._kept = kept_table(config, reads=2)
        self._edit = Signal(member_edit(config))
        self._writes = Signal()  # an edit is under way
        self._gone = Signal()  # the drive of the edit that is offered, or under way, has been away
        self._newest = Signal(config.ports)  # a bit a port: the copy with the drive's newest list
        self._lists_first = Signal()  # of the edit under way: the list is being written

    def elaborate(self, platform) -> Module:
        survey, writer = self._survey, self._writer
        m = Module()
        m.submodules.survey = survey
        m.submodules.lists = self._lists
        m.submodules.list_writer = self._list_writer
        m.submodules.writer = writer
        m.submodules.words = self._words
        m.submodules.mover = self._mover
        m.submodules.kept = self._kept
        connect(m, flipped(self.operation), self._mover.operation)
        connect(m, flipped(self.finished), self._mover.finished)
        m.d.comb += [
            survey.present.eq(self.present),
            writer.facts.eq(self.facts),
            self.shuns.eq(self._mover.shuns),
            self.known.eq(survey.known),
        ]
        users = [survey, self._lists, self._list_writer, writer]
        bitmaps = self._bitmaps
        if bitmaps is not None:
            m.submodules.bitmaps = bitmaps
            connect(m, flipped(self.bitmaps), bitmaps.asked)
            connect(m, bitmaps.load, flipped(self.load))
            connect(m, bitmaps.follow, flipped(self.follow))
            m.d.comb += bitmaps.known.eq(survey.known)
            users.append(bitmaps)
        for user in users:
            m.d.comb += user.page_line.eq(self.page_line)
        for port, (there, told) in enumerate(zip(self.capacity, self.findings, strict=True)):
            m.d.comb += [survey.capacity[port].eq(there), told.eq(survey.findings[port])]
        self._connect_lists(m)
        self._take_turns(m)
        self._share_mover(m)
        self._share_lines(m)
        return m

    def _connect_lists(self, m: Module) -> None:
        """What lists are about, and which copy of a drive is its newest."""
        lists, writer, asked = self._lists, self._list_writer, self.lists
        port = self._edit.superblock.port
        connect(m, flipped(asked.look), lists.look)
        connect(m, lists.entries, flipped(asked.entries))
        connect(m, writer.volume_read, flipped(self.volume_read))
        connect(m, writer.facts_read, flipped(self.facts_read))
        m.d.comb += [
            lists.begin.eq(asked.begin),
            lists.set_uuid.eq(asked.set_uuid),
            lists.give.eq(asked.give),
            asked.seen.eq(lists.seen),
            asked.owner.eq(lists.owner),
            asked.missed.eq(lists.missed),
            asked.generation.eq(lists.generation),
            lists.known.eq(self._survey.known),
            writer.set_uuid.eq(self.facts.set_uuid),
            writer.generation.eq(self.generation),
            writer.owner.eq(self.identity),
            writer.edit.payload.port.eq(port),
            writer.edit.payload.array.eq(self._edit.array),
            writer.edit.payload.copy.eq(~self._newest.bit_select(port, 1)),
        ]
        found = lists.newest
        with m.If(found.valid):
            m.d.sync += self._newest.bit_select(found.payload.port, 1).eq(found.payload.copy)

    def _take_turns(self, m: Module) -> None:
        """The states REST to TELL: an edit begins once no drive is read. Then its drive is known,
        or read again."""
        survey, writer, edit = self._survey, self._writer, self._edit
        list_writer, offered = self._list_writer, self.edit
        port = Mux(self._writes, edit.superblock.port, offered.payload.superblock.port)
        is_there = self.present.bit_select(port, 1)
        written, ends = survey.written.payload, Signal()
        m.d.comb += [
            survey.pause.eq(
                offered.valid | self._writes | Cat(one.wants for one in self._readers).any()
            ),
            *(one.may.eq(survey.rests & ~offered.valid & ~self._writes) for one in self._readers),
            writer.edit.payload.eq(edit.superblock),
            survey.written.valid.eq(ends),
            written.port.eq(port),
            written.known.eq((self.done.payload == DriveStatus.GOOD) & ~self._gone & is_there),
            written.finding.eq(
                Mux(edit.superblock.edit == Edit.ERASE, Finding.NONE, Finding.VALID)
            ),
        ]
        m.d.sync += self._gone.eq(
            (self._writes | offered.valid) & ~ends & (self._gone | ~is_there)
        )
        begins = offered.valid & self._rests
        with m.FSM(name="turns") as fsm:
            with m.State("REST"):
                m.d.comb += offered.ready.eq(self._rests)
                m.d.sync += edit.eq(offered.payload)
                with m.If(begins):
                    m.d.sync += self._writes.eq(1)
                    m.next = "WRITE"
                    with m.If(offered.payload.lists):
                        m.next = "WRITE_LIST"

            with m.State("WRITE_LIST"):
                m.d.comb += list_writer.edit.valid.eq(1)
                with m.If(list_writer.edit.ready):
                    m.next = "LISTEN_LIST"

            with m.State("LISTEN_LIST"):
                m.d.comb += list_writer.done.ready.eq(1)
                m.d.sync += self.done.payload.eq(list_writer.done.payload)
                with m.If(list_writer.done.valid):
                    m.next = "TELL"
                    with m.If(self._list_is_stored):
                        newest = self._newest.bit_select(port, 1)
                        m.d.sync += newest.eq(~newest)
                        m.next = "WRITE"

            with m.State("WRITE"):
                m.d.comb += writer.edit.valid.eq(1)
                with m.If(writer.edit.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.comb += writer.done.ready.eq(1)
                m.d.sync += self.done.payload.eq(writer.done.payload)
                with m.If(writer.done.valid):
                    m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += [self.done.valid.eq(1), ends.eq(self.done.ready)]
                with m.If(self.done.ready):
                    m.d.sync += self._writes.eq(0)
                    m.next = "REST"

            m.d.comb += self._lists_first.eq(
                fsm.ongoing("WRITE_LIST") | fsm.ongoing("LISTEN_LIST")
            )
            moves = begins | fsm.ongoing("WRITE_LIST") | fsm.ongoing("WRITE") | ends
        parts = (survey, *self._readers, list_writer, writer, self._mover)
        m.d.comb += self.busy.eq(Cat(moves, *(part.busy for part in parts)).any())

    @property
    def _list_is_stored(self) -> Value:
        """What the list writer says."""
        return self._list_writer.done.payload == DriveStatus.GOOD

    @property
    def _rests(self) -> Value:
        """No drive is being read."""
        return self._survey.rests & ~self._reads

    @property
    def _readers(self) -> list:
        """Those that read what lies beside superblocks. One of them does at a time."""
        return [self._lists] if self._bitmaps is None else [self._lists, self._bitmaps]

    @property
    def _reads(self) -> Value:
        """One of them reads a drive."""
        return Cat(one.reads for one in self._readers).any()

    @property
    def _users(self) -> tuple:
        """Those that move pages, and which of them has the mover."""
        return (
            (self._survey, ~self._writes & ~self._reads),
            *((one, one.reads) for one in self._readers),
            (self._list_writer, self._writes & self._lists_first),
            (self._writer, self._writes & ~self._lists_first),
        )

    def _share_mover(self, m: Module) -> None:
        """The page mover is that of whose turn it is."""
        mover = self._mover
        m.d.comb += mover.gone.eq(self._survey.gone)
        for reader in self._readers:
            with m.If(reader.reads):
                m.d.comb += mover.gone.eq(reader.gone)
        with m.If(self._writes):
            m.d.comb += mover.gone.eq(self._gone)
        for user, has in self._users:
            with m.If(has):
                m.d.comb += [
                    mover.move.payload.eq(user.move.payload),
                    mover.move.valid.eq(user.move.valid),
                    user.move.ready.eq(mover.move.ready),
                    user.moved.valid.eq(mover.moved.valid),
                    mover.moved.ready.eq(user.moved.ready),
                ]
            m.d.comb += user.moved.payload.eq(mover.moved.payload)

    def _share_lines(self, m: Module) -> None:
        """So are the words of the page line, and what is kept of superblocks."""
        survey, kept, words = self._survey, self._kept, self._words
        writer, list_writer = self._writer, self._list_writer
        connect(m, flipped(self.kept_read), kept.reads[1])
        connect(m, writer.kept_read, kept.reads[0])
        connect(m, words.line_write, flipped(self.line_write))
        m.d.comb += words.line.eq(self.page_line)
        for user, has in ((survey, ~self._writes), (writer, self._writes)):
            with m.If(has):
                m.d.comb += [
                    kept.write.address.eq(user.kept_write.address),
                    kept.write.data.eq(user.kept_write.data),
                    kept.write.enable.eq(user.kept_write.enable),
                ]
        for user, has in ((list_writer, self._lists_first), (writer, ~self._lists_first)):
            with m.If(has):
                m.d.comb += [
                    words.words.payload.eq(user.words.payload),
                    words.words.valid.eq(user.words.valid),
                    user.words.ready.eq(words.words.ready),
                ]
        asked = self.line_read.request
        readers = ((one, one.reads) for one in self._readers)
        for user, has in ((survey, ~self._reads), *readers):
            inner = user.line_read
            with m.If(has):
                m.d.comb += [
                    asked.payload.eq(inner.request.payload),
                    asked.valid.eq(inner.request.valid),
                    inner.request.ready.eq(asked.ready),
                    inner.response_valid.eq(self.line_read.response_valid),
                ]
            m.d.comb += inner.response.eq(self.line_read.response)
