"""The metadata of all drives: what it is, and changes to it."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.line import ReadPort, write_port
from hdl.flow.marks import marks_word
from hdl.flow.operation import DriveStatus, finished, operation
from hdl.flow.table_read import volume_read
from hdl.flow.volume_facts import volume_facts_read
from hdl.kit.pick import lowest_bit
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


def edited(config: Config) -> data.StructLayout:
    """How the edit of a drive ended."""
    return data.StructLayout({"port": config.port_bits, "status": DriveStatus})


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

    The superblock is made while its edit is offered. Then the edit is taken, and the next one can
    be made while the drive works: ``config.superblock_lines`` are under way at once. They end in
    any order. A drive has one at a time.

    A list goes to the copy that does not hold the drive's newest one. So the newest list that has
    been stored well is there whatever happens to the next one. The superblock is only written once
    the list has been. The next edit waits for that.

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
    first_line
        A level. Lines that nobody else uses, from this one on: those of a
        `hdl.metadata.page_mover.PageMover`.
    edit
        What is to be written.
    facts
        A level. What the array's superblocks say, constant while ``edit`` is offered. Of no meaning
        to ERASE.
    generation
        A level, alike. That of the list.
    done
        How it ended.
    lists
        Lists of volumes are read. None is asked for while its array is written.
    bitmaps, load, follow
        With `Config.durable_marks`: those of `hdl.metadata.bitmap_reader.BitmapReader`. None is
        asked for while a list is.
    volume_read, facts_read, detached
        The volumes, for `hdl.metadata.volume_list_writer.VolumeListWriter`.
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
                "first_line": In(config.line_bits),
                "edit": In(stream.Signature(member_edit(config))),
                "facts": In(SuperblockFacts),
                "generation": In(EVENT_BITS),
                "done": Out(stream.Signature(edited(config))),
                "lists": In(ListReads(config)),
                "bitmaps": In(BitmapReads(config)),
                "load": Out(stream.Signature(marks_word(config))),
                "follow": Out(Pulse(config.array_bits)),
                "volume_read": Out(volume_read(config)),
                "facts_read": Out(volume_facts_read(config)),
                "detached": In(config.volumes),
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
        # The edit that is offered: it is being made, in this line; its list is being written, or
        # has been refused; its drive has been away.
        self._makes = Signal()
        self._line = Signal(range(config.superblock_lines))
        self._lists_first = Signal()
        self._refused = Signal(edited(config))
        self._tells = Signal()
        self._lost = Signal()
        # A bit a line: its superblock is under way; that erases it; its drive has been away, or
        # is. The port of each.
        self._under_way = Signal(config.superblock_lines)
        self._erases = Signal(config.superblock_lines)
        self._gone = Signal(config.superblock_lines)
        self._goes = Signal(config.superblock_lines)
        self._ports = Array(
            Signal(config.port_bits, name=f"port{line}") for line in range(config.superblock_lines)
        )
        self._newest = Signal(config.ports)  # a bit a port: the copy with the drive's newest list

    def elaborate(self, platform) -> Module:
        survey, writer, words = self._survey, self._writer, self._words
        m = Module()
        m.submodules.survey = survey
        m.submodules.lists = self._lists
        m.submodules.list_writer = self._list_writer
        m.submodules.writer = writer
        m.submodules.words = words
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
        users = [survey, self._lists, self._list_writer]
        bitmaps = self._bitmaps
        if bitmaps is not None:
            m.submodules.bitmaps = bitmaps
            connect(m, flipped(self.bitmaps), bitmaps.asked)
            connect(m, bitmaps.load, flipped(self.load))
            connect(m, bitmaps.follow, flipped(self.follow))
            m.d.comb += bitmaps.known.eq(survey.known)
            users.append(bitmaps)
        page_line = Signal(self._config.line_bits)
        m.d.comb += [
            page_line.eq(self.first_line + self._page),
            self._mover.first_line.eq(self.first_line),
            words.line.eq(Mux(self._lists_first, page_line, self.first_line + self._line)),
        ]
        for user in users:
            m.d.comb += user.page_line.eq(page_line)
        for port, (there, told) in enumerate(zip(self.capacity, self.findings, strict=True)):
            m.d.comb += [survey.capacity[port].eq(there), told.eq(survey.findings[port])]
        self._connect_lists(m)
        self._take_turns(m)
        self._tell(m)
        self._watch_drives(m)
        self._share_mover(m)
        self._share_lines(m)
        return m

    def _connect_lists(self, m: Module) -> None:
        """What lists are about, and which copy of a drive is its newest."""
        lists, writer, asked = self._lists, self._list_writer, self.lists
        edit = self.edit.payload
        port = edit.superblock.port
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
            writer.detached.eq(self.detached),
            writer.edit.payload.port.eq(port),
            writer.edit.payload.array.eq(edit.array),
            writer.edit.payload.copy.eq(~self._newest.bit_select(port, 1)),
        ]
        found = lists.newest
        with m.If(found.valid):
            m.d.sync += self._newest.bit_select(found.payload.port, 1).eq(found.payload.copy)

    def _take_turns(self, m: Module) -> None:
        """The states REST to TELL: an edit begins once no drive is read and there is a line."""
        survey, writer, offered = self._survey, self._writer, self.edit
        list_writer, edit = self._list_writer, self.edit.payload
        port = edit.superblock.port
        line, under_way, edits = self._line, self._under_way, Signal()
        tells_other = self._mover.moved.valid & self._is_superblock
        m.d.comb += [
            edits.eq(offered.valid | under_way.any() | self._tells),
            survey.pause.eq(edits | Cat(one.wants for one in self._readers).any()),
            *(one.may.eq(survey.rests & ~edits) for one in self._readers),
            writer.edit.payload.eq(edit.superblock),
            writer.line.eq(line),
        ]
        begins = offered.valid & self._rests & ~under_way.all()
        with m.FSM(name="turns") as fsm:
            with m.State("REST"):
                m.d.sync += line.eq(lowest_bit(m, ~under_way, "free_line"))
                with m.If(begins):
                    m.next = "MAKE"
                    with m.If(edit.lists):
                        m.next = "WRITE_LIST"

            with m.State("WRITE_LIST"):
                m.d.comb += list_writer.edit.valid.eq(1)
                with m.If(list_writer.edit.ready):
                    m.next = "LISTEN_LIST"

            with m.State("LISTEN_LIST"):
                m.d.comb += list_writer.done.ready.eq(1)
                m.d.sync += [
                    self._refused.port.eq(port),
                    self._refused.status.eq(list_writer.done.payload),
                ]
                with m.If(list_writer.done.valid):
                    m.next = "REFUSE"
                    with m.If(self._list_is_stored):
                        newest = self._newest.bit_select(port, 1)
                        m.d.sync += newest.eq(~newest)
                        m.next = "MAKE"

            with m.State("MAKE"):
                m.d.comb += [writer.edit.valid.eq(1), offered.ready.eq(writer.edit.ready)]
                with m.If(writer.edit.ready):
                    m.d.sync += [
                        under_way.bit_select(line, 1).eq(1),
                        self._ports[line].eq(port),
                        self._erases.bit_select(line, 1).eq(edit.superblock.edit == Edit.ERASE),
                    ]
                    m.next = "REST"

            # Its list has not been stored. What is told meanwhile stays so until it is taken.
            with m.State("REFUSE"):
                m.d.comb += offered.ready.eq(~tells_other)
                with m.If(~tells_other):
                    m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += self._tells.eq(1)
                with m.If(self.done.ready):
                    m.next = "REST"

            m.d.comb += [
                self._makes.eq(~(fsm.ongoing("REST") | fsm.ongoing("TELL"))),
                self._lists_first.eq(fsm.ongoing("WRITE_LIST") | fsm.ongoing("LISTEN_LIST")),
            ]
            moves = fsm.ongoing("REST") & begins
            moves |= fsm.ongoing("WRITE_LIST") | (fsm.ongoing("REFUSE") & ~tells_other)
        ends = self.done.valid & self.done.ready
        parts = (survey, *self._readers, list_writer, writer, self._mover)
        m.d.comb += self.busy.eq(Cat(moves, ends, *(part.busy for part in parts)).any())

    def _tell(self, m: Module) -> None:
        """Ends are told. Then the drive is known, or it is read again."""
        moved, written, done = self._mover.moved, self._survey.written, self.done
        line = moved.payload.line[: len(self._line)]
        port, is_stored = Signal(self._config.port_bits), Signal()
        is_there = ~(self._gone | self._goes).bit_select(line, 1)
        erases = self._erases.bit_select(line, 1)
        m.d.comb += [
            done.valid.eq(self._tells | (moved.valid & self._is_superblock)),
            done.payload.port.eq(port),
            written.valid.eq(done.valid & done.ready),
            written.payload.port.eq(port),
            written.payload.known.eq(is_stored),
            written.payload.finding.eq(Mux(erases, Finding.NONE, Finding.VALID)),
        ]
        with m.If(self._tells):
            m.d.comb += [port.eq(self._refused.port), done.payload.status.eq(self._refused.status)]
        with m.Else():
            status = moved.payload.status
            m.d.comb += [
                port.eq(self._ports[line]),
                done.payload.status.eq(status),
                is_stored.eq((status == DriveStatus.GOOD) & is_there),
            ]
            with m.If(self._is_superblock):
                m.d.comb += moved.ready.eq(done.ready)
                with m.If(moved.valid & done.ready):
                    m.d.sync += self._under_way.bit_select(line, 1).eq(0)

    def _watch_drives(self, m: Module) -> None:
        """Whose drive has been away since its edit was offered."""
        offered = self.edit
        is_there = self.present.bit_select(offered.payload.superblock.port, 1)
        lost = self._lost | ~is_there
        m.d.comb += self._goes.eq(
            Cat(~self.present.bit_select(port, 1) for port in self._ports) & self._under_way
        )
        m.d.sync += [
            self._gone.eq(self._gone | self._goes),
            self._lost.eq(offered.valid & ~offered.ready & lost),
        ]
        with m.If(offered.valid & offered.ready):
            m.d.sync += self._gone.bit_select(self._line, 1).eq(lost)

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
    def _page(self) -> int:
        """The line of pages that are no superblocks to be written."""
        return self._config.superblock_lines

    @property
    def _is_superblock(self) -> Value:
        """The move that has ended is that of a superblock that has been written."""
        return self._mover.moved.payload.line != self._page

    def _share_mover(self, m: Module) -> None:
        """The page mover is that of whose turn it is, and of superblocks that are under way."""
        mover, writer = self._mover, self._writer
        given, moved = mover.move, mover.moved
        gone = Signal()
        m.d.comb += [mover.gone.eq(Cat(self._gone, gone)), given.payload.line.eq(self._page)]
        turns = (
            (self._survey, ~self._makes & ~self._reads, self._survey.gone),
            *((one, one.reads, one.gone) for one in self._readers),
            (self._list_writer, self._lists_first, self._lost),
        )
        for user, has, has_gone in turns:
            with m.If(has):
                m.d.comb += [
                    gone.eq(has_gone),
                    given.payload.page.eq(user.move.payload),
                    given.valid.eq(user.move.valid),
                    user.move.ready.eq(given.ready),
                ]
                with m.If(~self._is_superblock):
                    m.d.comb += [
                        user.moved.valid.eq(moved.valid),
                        moved.ready.eq(user.moved.ready),
                    ]
            m.d.comb += user.moved.payload.eq(moved.payload.status)
        with m.If(self._makes & ~self._lists_first):
            m.d.comb += [
                given.payload.page.eq(writer.move.payload),
                given.payload.line.eq(self._line),
                given.valid.eq(writer.move.valid),
                writer.move.ready.eq(given.ready),
            ]

    def _share_lines(self, m: Module) -> None:
        """So are the words of lines, and what is kept of superblocks."""
        survey, kept, words = self._survey, self._kept, self._words
        writer, list_writer = self._writer, self._list_writer
        connect(m, flipped(self.kept_read), kept.reads[1])
        connect(m, writer.kept_read, kept.reads[0])
        connect(m, words.line_write, flipped(self.line_write))
        for user, has in ((survey, ~self._makes), (writer, self._makes)):
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
