"""Arrays live on their drives: what is read of drives, brought up, and written to them."""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.flow.array_state import ArrayStatus
from hdl.flow.attachments import Attachments
from hdl.flow.drive_standing import drive_standing
from hdl.flow.drive_states import DriveStates
from hdl.flow.flush_request import FlushRequest
from hdl.flow.line import ReadPort, write_beat, write_port
from hdl.flow.manage import Changes
from hdl.flow.marks import Marks, marks_word
from hdl.flow.operation import finished, operation
from hdl.flow.table_read import geometry_read, member_read, placed_read, volume_read
from hdl.flow.volume_facts import volume_facts_read
from hdl.kit.merge import FirstOf, Interleave, Merge, split
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead
from hdl.metadata.bitmap_writer import BitmapWriter
from hdl.metadata.bring_up import BringUp
from hdl.metadata.change_turns import ChangeTurns
from hdl.metadata.clean_shutdown import CleanShutdown
from hdl.metadata.host_changes import HostChanges
from hdl.metadata.keeper import Keeper
from hdl.metadata.spare_keeper import SpareKeeper
from hdl.metadata.stored_marks import StoredMarks
from hdl.metadata.superblock import Finding, kept_read
from hdl.metadata.superblocks import Superblocks
from hdl.nvme.admin.names import Card


class Metadata(wiring.Component):
    """Superblocks are read as drives come, arrays are brought up from them, and are kept in them.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    host_changes
        The host's changes.
    changes
        Changes of the host and of `BringUp`, for `hdl.background.background.Background`.
    made_changes
        What that makes of them.
    table_changes
        The same, for `hdl.array.tables.tables.ArrayTables`.
    placed_read
        The members of the array that is brought up, for the same.
    card
        What identities of arrays are made of.
    present, capacity
        Of the drive at each port.
    drives
        What the tables know of the drives.
    arrays
        The states of all arrays.
    geometry_read
        Table of the arrays.
    member_read
        Table of the members.
    volume_exists
        Bit a volume: it is there.
    volume_read, facts_read
        Volumes, and what is stored of them besides.
    appeared
        Bit a volume, a pulse: it has been brought up.
    attachments
        Volumes that are attached, to be stored.
    foreign
        Bit a port: its drive says that it belongs to an array, which is not there.
    standings
        Of the superblock at each port.
    shutdown
        The flush that a shutdown asks for.
    flush
        The same, for `hdl.drive.flusher.FlushAll`.
    stored
        With ``flushed`` of ``flush``: every drive that has not failed has stored what it had.
    parting
        One bit per port. It has left its array, in which rows of before may still use it.
    spares, tries_spare, clean
        One bit per port, and levels: those of `hdl.background.supervisor.Supervisor`.
    wanted
        The host wants the controller to work.
    ready
        It can: the arrays that the drives hold are there, and their superblocks say so.
    replayed, covered, surveyed
        Those of `hdl.metadata.bring_up.BringUp`.
    known
        One bit per port. What is kept is the superblock of the drive that is there.
    freezes
        With `Config.backup_blocks`, a level: the power fails, and superblocks stay as they are.
    redo_reads, redo_kept_read
        With `Config.backup_blocks`: what is kept of superblocks is read for the redo record, while
        a level says so.
    sound, steady, home_read, says_clean
        Those of `hdl.metadata.keeper.Keeper`.
    withholds, forsaken
        One bit per array. Nothing of it may be acknowledged to the host, or nothing that writes to
        it (`hdl.metadata.withheld.Withheld`).
    first_page
        A level. Lines that nobody else uses, from this one on, for `hdl.metadata.page_mover`.
    marks, whole, lets, now, deadline
        With `Config.durable_marks`: those of `hdl.metadata.stored_marks.StoredMarks`.
    idle
        With `Config.durable_marks`: that of `hdl.background.idle_flush.IdleFlush`.
    filled
        With `Config.durable_marks`: that of `hdl.background.intent.Intent`.
    load, follow
        With `Config.durable_marks`: those of `hdl.metadata.bitmap_reader.BitmapReader`.
    first_line
        With `Config.durable_marks`, a level. A line for each array, from this one on.
    operation, finished, shuns
        Those of a `hdl.metadata.page_mover.PageMover`, and `hdl.metadata.bitmap_writer`.
    line_read, line_write
        Ports of the line store.
    wipe, wiped
        Drives that are about to become members, see `hdl.array.tables.tables.ArrayTables`.
    opens
        One bit per port. Operations go to this port though it has failed.
    fail
        Ports whose drive does not store its superblock.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "host_changes": In(Changes(config)),
                "changes": Out(Changes(config)),
                "made_changes": In(Changes(config)),
                "table_changes": Out(Changes(config)),
                "placed_read": In(placed_read(config)),
                "card": In(Card()),
                "present": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "geometry_read": Out(geometry_read(config)).array(2),
                "member_read": Out(member_read(config)).array(2),
                "volume_exists": In(config.volumes),
                "volume_read": Out(volume_read(config)),
                "facts_read": Out(volume_facts_read(config)),
                "appeared": Out(config.volumes),
                "attachments": In(Attachments(config)),
                "foreign": Out(config.ports),
                "standings": Out(drive_standing()).array(config.ports),
                "shutdown": In(FlushRequest()),
                "flush": Out(FlushRequest()),
                "stored": In(1),
                "parting": In(MAX_DRIVES),
                "spares": In(MAX_DRIVES),
                "tries_spare": In(1),
                "clean": Out(1),
                "wanted": In(1),
                "ready": Out(1),
                "replayed": In(1),
                "covered": In(config.ports),
                "surveyed": Out(1),
                "known": Out(config.ports),
                "freezes": In(1),
                "redo_reads": In(1),
                "redo_kept_read": In(kept_read(config)),
                "sound": Out(MAX_DRIVES),
                "steady": Out(config.arrays),
                "home_read": In(TableRead(config.port_bits, config.array_bits)),
                "says_clean": Out(config.arrays),
                "withholds": Out(config.arrays),
                "forsaken": Out(config.arrays),
                "first_page": In(config.line_bits),
                "marks": Out(Marks(config)),
                "whole": In(config.arrays),
                "idle": In(config.arrays),
                "filled": In(Pulse(config.array_bits)),
                "lets": Out(stream.Signature(config.row_slot_bits)),
                "load": Out(stream.Signature(marks_word(config))),
                "follow": Out(Pulse(config.array_bits)),
                "first_line": In(config.line_bits),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=(1 << TIME_BITS) - 1),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "shuns": Out(MAX_DRIVES),
                "line_read": Out(ReadPort(config)),
                "line_write": Out(write_port(config)),
                "wipe": In(stream.Signature(config.port_bits)),
                "wiped": Out(stream.Signature(1)),
                "opens": Out(MAX_DRIVES),
                "fail": Out(stream.Signature(config.port_bits)),
                "busy": Out(1),
            }
        )
        self._superblocks = Superblocks(config=config)
        self._bring_up = BringUp(config=config)
        self._host_changes = HostChanges(config=config)
        self._turns = ChangeTurns(config=config)
        self._keeper = Keeper(config=config)
        self._spares = SpareKeeper(config=config)
        self._clean = CleanShutdown()
        if config.durable_marks:
            self._stored_marks = StoredMarks(config=config)
            self._bitmap_writer = BitmapWriter(config=config)
            self._operations = Merge(operation(config), inputs=2)
            self._beats = Interleave(write_beat(config))

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.superblocks = self._superblocks
        m.submodules.bring_up = self._bring_up
        m.submodules.host_changes = self._host_changes
        m.submodules.turns = self._turns
        m.submodules.keeper = self._keeper
        m.submodules.spares = self._spares
        m.submodules.clean = self._clean
        self._connect_drives(m)
        self._connect_bring_up(m)
        self._connect_keeper(m)
        self._connect_spares(m)
        self._connect_shutdown(m)
        parts = (
            self._superblocks,
            self._bring_up,
            self._host_changes,
            self._turns,
            self._keeper,
            self._spares,
            self._clean,
        )
        if self._config.durable_marks:
            parts += self._connect_marks(m)
        m.d.comb += self.busy.eq(Cat(part.busy for part in parts).any())
        return m

    def _connect_drives(self, m: Module) -> None:
        """Superblocks on their way from and to the drives."""
        superblocks = self._superblocks
        connect(m, superblocks.line_read, flipped(self.line_read))
        if not self._config.durable_marks:
            connect(m, superblocks.operation, flipped(self.operation))
            connect(m, flipped(self.finished), superblocks.finished)
            connect(m, superblocks.line_write, flipped(self.line_write))
        connect(m, superblocks.volume_read, flipped(self.volume_read))
        connect(m, superblocks.facts_read, flipped(self.facts_read))
        connect(m, flipped(self.attachments).store, self._keeper.store)
        connect(m, self._keeper.stored, flipped(self.attachments).stored)
        m.d.comb += [
            superblocks.present.eq(self.present),
            superblocks.first_line.eq(self.first_page),
            superblocks.identity.eq(self.card.identity),
            superblocks.detached.eq(self.attachments.detached),
            self.shuns.eq(superblocks.shuns),
        ]
        for blocks, inner in zip(self.capacity, superblocks.capacity, strict=True):
            m.d.comb += inner.eq(blocks)

    def _connect_bring_up(self, m: Module) -> None:
        """Arrays from superblocks, by turns with the host's changes."""
        superblocks, bring_up, turns = self._superblocks, self._bring_up, self._turns
        keeper = self._keeper
        host = self._host_changes
        connect(m, flipped(self.host_changes), host.host)
        connect(m, host.changes, self._spares.changes)
        connect(m, self._spares.passed, turns.users[0])
        connect(m, host.imports, bring_up.imports)
        connect(m, bring_up.changes, turns.users[1])
        connect(m, turns.changes, flipped(self.changes))
        kept, asked = superblocks.kept_read, bring_up.kept_read
        m.d.comb += [
            kept.address.eq(Mux(self.redo_reads, self.redo_kept_read.address, asked.address)),
            asked.data.eq(kept.data),
            self.redo_kept_read.data.eq(kept.data),
            bring_up.replayed.eq(self.replayed),
            bring_up.covered.eq(self.covered),
            self.surveyed.eq(bring_up.surveyed),
        ]
        connect(m, bring_up.lists, superblocks.lists)
        connect(m, bring_up.bitmaps, superblocks.bitmaps)
        connect(m, superblocks.load, flipped(self.load))
        connect(m, superblocks.follow, flipped(self.follow))
        connect(m, bring_up.record_read, keeper.record_read[0])
        connect(m, flipped(self.placed_read), bring_up.placed_read)
        connect(m, flipped(self.drives), bring_up.drives)
        valid = Cat(finding == Finding.VALID for finding in superblocks.findings)
        m.d.comb += [
            keeper.known.eq(superblocks.known),
            keeper.valid.eq(valid & superblocks.known),
            self.known.eq(valid & superblocks.known),
        ]
        for port, standing in enumerate(self.standings):
            with m.If(self.present[port] & superblocks.known[port]):
                m.d.comb += standing.finding.eq(superblocks.findings[port])
            with m.If(self.foreign[port]):
                m.d.comb += standing.hindrance.eq(bring_up.hindrances[port])
        m.d.comb += [
            bring_up.identity.eq(self.card.identity),
            bring_up.present.eq(self.present),
            bring_up.known.eq(superblocks.known),
            bring_up.valid.eq(valid & ~(keeper.claimed | self._spares.claimed)),
            self.foreign.eq(self.present & superblocks.known & bring_up.valid & ~self.drives.used),
            bring_up.kept.eq(keeper.kept),
            bring_up.rests.eq(keeper.rests),
            bring_up.cleared.eq(self._spares.cleared),
            turns.holds.eq(bring_up.holds),
            bring_up.held.eq(turns.held),
            bring_up.exists.eq(self.volume_exists),
            self.appeared.eq(bring_up.appeared),
            self.attachments.appears_detached.eq(bring_up.appears_detached),
        ]

    def _connect_keeper(self, m: Module) -> None:
        """Superblocks from arrays."""
        keeper, superblocks = self._keeper, self._superblocks
        connect(m, flipped(self.made_changes), keeper.changes)
        connect(m, keeper.table_changes, flipped(self.table_changes))
        connect(m, keeper.member_read, flipped(self.member_read[0]))
        connect(m, self._bring_up.listed, keeper.listed)
        connect(m, keeper.span_read, self._bring_up.span_read)
        if not self._config.durable_marks:
            connect(m, keeper.fail, flipped(self.fail))
        connect(m, flipped(self.wipe), keeper.wipe)
        connect(m, keeper.wiped, flipped(self.wiped))
        connect(m, flipped(self.drives), keeper.drives)
        connect(m, flipped(self.card), keeper.card)
        m.d.comb += [
            keeper.brought_up.eq(self._bring_up.brought_up),
            keeper.newest.eq(self._bring_up.lists.generation),
            superblocks.generation.eq(keeper.generation),
            keeper.states.eq(self.arrays.states),
            keeper.unsynced.eq(self.arrays.unsynced),
            keeper.doubts.eq(self.arrays.doubts),
            keeper.essential.eq(self.arrays.essential),
            keeper.settled.eq(self.arrays.settled & ~self.freezes),
            keeper.parting.eq(self.parting),
            self.opens.eq(keeper.opens),
            self.sound.eq(keeper.sound & self.known),
            self.steady.eq(keeper.steady),
            keeper.home_read.address.eq(self.home_read.address),
            self.home_read.data.eq(keeper.home_read.data),
            self.says_clean.eq(keeper.says_clean),
            self.withholds.eq(keeper.withholds),
            self.forsaken.eq(keeper.forsaken),
        ]

    def _connect_spares(self, m: Module) -> None:
        """Superblocks of spares. One of the two keepers writes at a time."""
        keeper, superblocks, spares = self._keeper, self._superblocks, self._spares
        connect(m, self._bring_up.spare, spares.found)
        connect(m, flipped(self.drives), spares.drives)
        connect(m, spares.record_read, keeper.record_read[2])
        connect(m, spares.model_read, keeper.model_read)
        for blocks, inner in zip(self.capacity, spares.capacity, strict=True):
            m.d.comb += inner.eq(blocks)
        m.d.comb += [
            spares.identity.eq(self.card.identity),
            spares.known.eq(superblocks.known),
            spares.blank.eq(Cat(finding == Finding.NONE for finding in superblocks.findings)),
            spares.spares.eq(self.spares),
            spares.tries.eq(self.tries_spare),
            spares.wiped.valid.eq(self.wipe.valid & self.wipe.ready),
            spares.wiped.payload.eq(self.wipe.payload),
            spares.kept.eq(keeper.kept),
            spares.sound.eq(keeper.sound),
            spares.has_model.eq(keeper.has_model),
            spares.owned.eq(keeper.owned),
            spares.holds.eq(self._bring_up.holds),
            spares.yields.eq(keeper.yields),
            keeper.pauses.eq(spares.pauses),
            keeper.geometry_read.data.eq(self.geometry_read[0].data),
            spares.geometry_read.data.eq(self.geometry_read[0].data),
        ]
        for user, has in ((keeper, ~spares.pauses), (spares, spares.pauses)):
            with m.If(has):
                m.d.comb += [
                    self.geometry_read[0].address.eq(user.geometry_read.address),
                    superblocks.facts.eq(user.facts),
                    superblocks.edit.payload.eq(user.edit.payload),
                    superblocks.edit.valid.eq(user.edit.valid),
                    user.edit.ready.eq(superblocks.edit.ready),
                    user.done.valid.eq(superblocks.done.valid),
                    superblocks.done.ready.eq(user.done.ready),
                ]
        m.d.comb += [
            keeper.done.payload.eq(superblocks.done.payload),
            spares.done.payload.eq(superblocks.done.payload.status),
        ]

    def _connect_marks(self, m: Module) -> tuple:
        """The write-intent bitmap on the drives. Returns its parts.

        Its pages are written beside those of superblocks.
        """
        keeper, superblocks = self._keeper, self._superblocks
        marks, writer = self._stored_marks, self._bitmap_writer
        operations, beats = self._operations, self._beats
        m.submodules.stored_marks = marks
        m.submodules.bitmap_writer = writer
        m.submodules.operations = operations
        m.submodules.beats = beats
        connect(m, marks.marks, flipped(self.marks))
        connect(m, marks.lets, flipped(self.lets))
        connect(m, marks.page, writer.page)
        connect(m, marks.words, writer.words)
        connect(m, writer.stored, marks.stored)
        connect(m, keeper.forget, marks.forget)
        connect(m, keeper.refresh, marks.refresh)
        connect(m, marks.held, keeper.waits)
        connect(m, flipped(self.filled), keeper.filled)
        connect(m, writer.geometry_read, flipped(self.geometry_read[1]))
        connect(m, writer.member_read, flipped(self.member_read[1]))
        connect(m, writer.record_read, keeper.record_read[1])
        connect(m, flipped(self.drives), writer.drives)
        connect(m, superblocks.operation, operations.inputs[0])
        connect(m, writer.operation, operations.inputs[1])
        connect(m, operations.output, flipped(self.operation))
        connect(m, superblocks.line_write, beats.inputs[0])
        connect(m, writer.line_write, beats.inputs[1])
        connect(m, beats.output, flipped(self.line_write))
        ended = self.finished
        of_bitmap = ended.payload.place[0]
        split(m, ended, [(~of_bitmap, superblocks.finished), (of_bitmap, writer.finished)])
        m.d.comb += [
            keeper.whole.eq(self.whole),
            keeper.idle.eq(self.idle),
            marks.clean.eq(keeper.says_clean),
            marks.whole.eq(self.whole | keeper.raw | keeper.unmarked),
            keeper.loaded.valid.eq(superblocks.follow.valid),
            keeper.loaded.payload.eq(superblocks.follow.payload),
            marks.exempt.eq(keeper.exempt),
            marks.now.eq(self.now),
            self.deadline.eq(marks.deadline),
            keeper.fresh.eq(marks.fresh),
            keeper.under_way.eq(marks.under_way),
            keeper.writing.eq(writer.writing),
            writer.essential.eq(self.arrays.essential),
            writer.settled.eq(self.arrays.settled),
            writer.first_line.eq(self.first_line),
        ]
        m.submodules.reports = reports = FirstOf(self._config.port_bits, inputs=2)
        connect(m, keeper.fail, reports.inputs[0])
        connect(m, writer.fail, reports.inputs[1])
        connect(m, reports.output, flipped(self.fail))
        return marks, writer, operations

    def _connect_shutdown(self, m: Module) -> None:
        """Clean arrays, and those that may be written."""
        keeper, clean = self._keeper, self._clean
        connect(m, flipped(self.shutdown), clean.asked)
        connect(m, clean.request, flipped(self.flush))
        m.d.comb += [
            clean.wanted.eq(self.wanted),
            clean.stored.eq(self.stored & ~self.arrays.doubts.any()),
            clean.rests.eq(keeper.rests & self._spares.rests),
            self.clean.eq(clean.clean),
            keeper.clean.eq(clean.clean),
            self.ready.eq(self._bring_up.ready & ~clean.clean & keeper.rests),
        ]
