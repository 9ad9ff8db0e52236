"""Reads go straight to a drive, flushes to all of them, the rest to the stripe engine."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config
from hdl.flow.array_state import ArrayStatus, impaired, redundant
from hdl.flow.drive_states import DriveStates
from hdl.flow.extent import expected, extent
from hdl.flow.geometry import WIDTH_BITS, data_offset, geometry
from hdl.flow.host_command import HostOpcode, Status, completion
from hdl.flow.operation import Opcode, Owner, load_bits, operation
from hdl.flow.recovery import ROUNDS, tried_bits
from hdl.flow.reference import Blame
from hdl.flow.row import committed
from hdl.flow.table_read import ArrayReads
from hdl.flow.walk import MendRequest
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table, TableRead
from hdl.stripe.mends import Mends
from hdl.stripe.read_streams import ReadStreams

COPY_BITS = WIDTH_BITS - 1
"""Width of a copy or place number, 0..31."""

FOLLOW_BITS = 16
"""Bits of a block number by which a read is recognised as following the one before it."""

RUN_BLOCKS = 32
"""Blocks more than another port that a port may have to do and still be asked to read on."""


class Dispatch(wiring.Component):
    """Decides where each extent goes.

    - WRITE: to ``gather``.
    - READ: one drive operation, if the drive that holds the strip is live. With parity, a read that
      must not use that drive (failed, or ``recover.tried``) goes to ``gather``; if the array may
      have nothing left to work it out from, only once the drive has been asked `ROUNDS` times,
      unless it cannot read the block. A first read of an array that has is one that may be SLOW.
    - With ``gather_reads``, READ of a long stream on an array with parity that is ``impaired``:
      to ``gather``, marked ``gathered``, whether the drive is live or not (`ReadStreams`).
    - READ of mirrors: the live copy whose port has the fewest blocks to do. A port that would read
      on where its last read ended counts `RUN_BLOCKS` less, so that a sequential stream changes
      drives in long runs. Ties go to the first copy from the strip's turn upwards (the bit-reversed
      sum of stripe and index).
    - READ of mirrors of which the copies may differ: the first copy that is live. That is the one
      which RESYNC takes (`hdl.stripe.walks.walk_plan.WalkPlan`), so what the host has been given
      stays. If its drive cannot read the block, the next one, as RESYNC does; if the drive aborts
      that, or is slow, it is asked again. What a copy could not give that was chosen otherwise,
      before the copies could differ, says nothing of those before it.
    - READ tried before, of others without parity: the next live copy, upwards from the one asked
      last; a single copy again.
    - READ without parity, when every copy has been asked or passed over `ROUNDS` times, of mirrors
      with ``background`` as often more as a drive that hangs takes until it is given up: the blocks
      are `unreadable`.
    - READ with parity of a row that may be inconsistent: the drive that holds the strip, as often
      as it takes until one that hangs has been given up. From the others it is worked out only if
      that drive is failed, or cannot read the block.
    - FLUSH: `expected` says how many drives will answer. Then each live member and the migration
      target get one operation. An array that has lost data is rejected with WRITE_FAULT: in a span
      more drives are failed or not yet rebuilt than there are parities, or so are all drives that
      hold the copies of one strip; or its volume is ``indebted`` or ``untaken``; or a member is
      suspect, and so cannot be asked. The tables are looked at anew each time that a FLUSH is sent,
      once it is known of all drives what becomes of them. The tracker sends it again when a drive
      went away meanwhile.
    - An extent whose ``status`` is not SUCCESS is `rejected` with it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    extent
        From the mapper.
    operation
        Direct reads and flushes, ``Owner.COMMAND``, ``index`` the command slot.
    gather
        Extents that need a row.
    rejected
        Commands that fail as a whole; nothing else is said of them.
    unreadable
        One UNRECOVERED_READ for each block that no drive holds any more.
    expected
        Drives that a FLUSH waits for, said before its operations are.
    reads
        Tables of the array. In an extent that reaches ``boundary`` a stale drive counts as failed
        for a read. From ``sync`` on copies of an array that is ``unsynced`` may differ.
    load_read
        How many blocks each port has to do (`hdl.drive.drives.Drives`).
    drives
        What the tables know of the drives. A FLUSH takes one that is suspect for failed. While it
        is undecided what becomes of some, which takes microseconds, no FLUSH is judged.
    arrays
        From a row on, copies of an array that is ``unsynced`` may differ, and its parities may be
        anything. That is so of all rows of an array in ``doubts``, and of every array while drives
        are undecided. That a drive could not read a block counts only in the era in which it was
        asked.
    ended
        With ``gather_reads``: a command has completed, in this slot.
    restarts
        With ``background``: how often the drive at a port has restarted. FLUSH operations say how
        often it had when they were judged, reads as it was seen whether copies may differ.
    late
        With ``background``: whether the command in a slot began before its volume was told. Such a
        FLUSH is refused, too (`hdl.background.debts.Debts`).
    blame
        With ``background``: a FLUSH is refused.
    blamed
        With ``blame``, those of the array's members that are suspect.
    mend
        With ``background``: the row of a redundant array in which a drive could not read a block,
        once the block has been asked for by other means (`hdl.stripe.mends.Mends`). Where copies
        may differ, its ``source`` is the copy that was asked: that is what the block is from now
        on, even if a copy before it could be read later.

    Throughput: 6 cycles for a direct read, of mirrors 4 and 4 for each copy, if tried before 6 and
    2 for each copy passed over; 2 for a write; 2 a member of each group and 1 a port for a FLUSH.
    One extent at
    a time; back-pressure on any output holds the extents behind it.
    """

    def __init__(self, *, config: Config):
        self._config = config
        # A drive that hangs is given up with the last but one of these.
        self._attempts = config.drive_resets + 3
        super().__init__(
            {
                "extent": In(stream.Signature(extent(config))),
                "operation": Out(stream.Signature(operation(config))),
                "gather": Out(stream.Signature(extent(config))),
                "rejected": Out(stream.Signature(completion(config))),
                "unreadable": Out(stream.Signature(committed(config))),
                "expected": Out(stream.Signature(expected(config))),
                "reads": Out(ArrayReads(config)),
                "load_read": Out(TableRead(config.port_bits, load_bits(config))),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "ended": In(Pulse(config.slot_bits)),
                "restarts": In(tried_bits(config)).array(config.ports),
                "late": Out(TableRead(config.slot_bits, 1)),
                "blame": Out(Blame(config)),
                "blamed": Out(MAX_DRIVES),
                "mend": Out(MendRequest(config)),
                "busy": Out(1),
            }
        )

        # What is in hand: an extent, its array, and the operation that is next.
        self._item = Signal(extent(config))
        self._shape = Signal(geometry(config))
        self._port = Signal(config.port_bits)
        self._row = Signal(BLOCK_NUMBER_BITS)

        # Drives, asked by port or by what ``reads.member`` gives.
        self._unreadable = Signal()
        # Not to be flushed; not to be counted on.
        self._unflushed = Signal()
        self._untrusted = Signal()
        # The drive that was asked cannot read the block.
        self._medium = Signal()
        # How often drives had restarted when a FLUSH was judged, or whether copies may differ.
        self._judged_restarts = Signal(data.ArrayLayout(tried_bits(config), config.ports))
        self._redundant = Signal()

        # Reads: the place of copy 0, and the copies left to try.
        self._first = Signal(WIDTH_BITS + 1)
        self._first_row = Signal(BLOCK_NUMBER_BITS)
        self._copy = Signal(COPY_BITS)
        self._tried = Signal(self._item.recover.tried.shape())
        self._place = Signal(WIDTH_BITS + 1)
        self._turns = Signal()
        self._turn = Signal(COPY_BITS)
        self._preferred = Signal(COPY_BITS)
        self._mirrored = Signal()
        self._weighs = Signal()
        # Copies may differ: whether that is so now, and whether the copy is chosen by it.
        self._differ = Signal()
        self._in_order = Signal()
        # A row may be inconsistent: the same of what would be worked out.
        self._unproven = Signal()
        self._in_place = Signal()

        # A copy being weighed, and the best so far.
        self._follows = Table(FOLLOW_BITS, 1 << config.port_bits)
        self._left = Signal(WIDTH_BITS)
        self._w_port = Signal(config.port_bits)
        self._w_row = Signal(BLOCK_NUMBER_BITS)
        self._w_failed = Signal()
        self._w_weight = Signal(load_bits(config) + 1)
        self._chosen = Signal(COPY_BITS)
        self._weight = Signal.like(self._w_weight)
        self._found = Signal()

        # What becomes of a read: how often its copies are asked, and whether those have been; rows
        # with a block that its drive could not read; whether it waits for the rest of its row.
        self._most = Signal(self._tried.shape())
        self._exhausted = Signal()
        self._last_row = Signal(BLOCK_NUMBER_BITS)
        self._mends = Mends(config=config)
        self._gone_on = Signal()
        self._streams = ReadStreams(config=config)
        self._gathers = Signal()
        self._starts = Signal()

        # Flushes: a walk over the members, group by group, then over the ports that they are at.
        # Members that can replace each other are a group: those of a span, or as many as there are
        # copies, which go on past the width from place 0 until a group ends there (RAID 1E).
        self._position = Signal(WIDTH_BITS)
        self._walk_place = Signal(WIDTH_BITS)
        self._walk_span = Signal(WIDTH_BITS)
        self._group = Signal(WIDTH_BITS)
        self._tolerance = Signal(WIDTH_BITS)
        self._dead = Signal(WIDTH_BITS)
        self._live = Signal(WIDTH_BITS)
        self._lost = Signal()
        self._targets = Signal(MAX_DRIVES)
        self._suspects = Signal(MAX_DRIVES)
        # The migration target of the member at `position`, in bits a port.
        self._migration_target = Signal(MAX_DRIVES)
        self._owes = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.follows = self._follows
        self._look_up(m)
        self._judge_member(m)
        self._judge_rows(m)
        self._judge_volume(m)
        self._follow_streams(m)
        self._mend(m)
        self._send(m)
        with m.FSM(name="dispatch") as fsm:
            self._take(m)
            self._look(m)
            self._choose_copy(m)
            self._weigh_copy(m)
            self._read(m)
            self._count_members(m)
            self._judge_flush(m)
            self._flush(m)
            self._rest(m, fsm.ongoing("TAKE") & ~self.extent.valid)
        return m

    def _look_up(self, m: Module) -> None:
        """Addresses the tables; works out the place of the copy, and what a group is."""
        item, shape = self._item, self._shape
        m.d.comb += [
            self.reads.geometry.address.eq(self.extent.payload.array),
            self.reads.member.address.array.eq(item.array),
            self.load_read.address.eq(self.reads.member.data),
            self.reads.boundary.address.eq(item.array),
            self.reads.sync.address.eq(item.array),
            self.reads.migration.address.eq(item.array),
            self.late.address.eq(item.slot),
            self._follows.reads[0].address.eq(self.reads.member.data),
            self._mirrored.eq(shape.copies > 1),
            self._redundant.eq(self._mirrored | (shape.parities > 0)),
            self._weighs.eq(self._mirrored & (item.recover.tried == 0) & ~self._in_order),
            self._place.eq(self._first + self._copy),
            self._turns.eq(self._place >= shape.width),
            self._preferred.eq((Cat(*reversed(list(self._turn))) * shape.copies) >> COPY_BITS),
        ]
        m.d.sync += [
            self._last_row.eq(item.row + item.blocks),
            self._group.eq(Mux(self._mirrored, shape.copies, shape.width)),
            self._tolerance.eq(Mux(self._mirrored, shape.copies - 1, shape.parities)),
        ]

    def _judge_member(self, m: Module) -> None:
        """Says of the member that has been looked up whether it can be read and flushed."""
        member = self.reads.member.data
        drives = self.drives
        failed, stale = drives.failed.bit_select(member, 1), drives.stale.bit_select(member, 1)
        # In every cycle: a rebuild may begin while copies are being weighed.
        boundary = Signal(BLOCK_NUMBER_BITS)
        beyond = Signal()
        m.d.sync += [
            boundary.eq(self.reads.boundary.data),
            beyond.eq(self._last_row >= boundary),
        ]
        entry = self.reads.migration.data
        target_fails = (drives.failed | drives.suspect).bit_select(entry.port, 1)
        m.d.comb += [
            self._unreadable.eq(failed | (beyond & stale)),
            self._unflushed.eq(failed | drives.suspect.bit_select(member, 1)),
            self._untrusted.eq(self._unflushed | stale),
        ]
        with m.If(entry.valid & ~target_fails & (entry.position == self._position)):
            m.d.comb += self._migration_target.eq(1 << entry.port)

    def _judge_rows(self, m: Module) -> None:
        """Says whether the rows of a read may be inconsistent, and how often drives are asked."""
        item, shape = self._item, self._shape
        unsynced = self.arrays.unsynced.bit_select(item.array, 1)
        behind = unsynced & (self._last_row >= self.reads.sync.data)
        torn = self.arrays.doubts.bit_select(item.array, 1) | self.drives.undecided
        same_era = item.recover.era == self.arrays.eras[item.array]
        # In order it may be one of the copies that has to be given up.
        more = self._attempts if self._config.background else 0
        m.d.comb += [
            self._differ.eq(self._mirrored & (behind | torn)),
            self._unproven.eq((shape.parities > 0) & (behind | torn)),
            self._most.eq(shape.copies * ROUNDS + Mux(self._mirrored, more, 0)),
            self._exhausted.eq(item.recover.tried != 0),
            # What a drive could not read before it restarted it may give now.
            self._medium.eq(item.recover.medium & ~self.drives.undecided & same_era),
        ]
        if self._config.slow_read_ms:
            lasts = redundant(self.arrays).bit_select(item.array, 1)
            asked = item.recover.tried.any()
            reads = item.opcode == HostOpcode.READ
            m.d.comb += [
                self._exhausted.eq(
                    (item.recover.tried >= ROUNDS) | (asked & (lasts | item.recover.medium))
                ),
                self.operation.payload.elsewhere.eq(
                    lasts & self._redundant & reads & ~asked & ~self._in_order & ~self._in_place
                ),
            ]

    def _judge_volume(self, m: Module) -> None:
        """Says whether a FLUSH must be refused for what its volume may have lost, and of whom."""
        owes = self.arrays.indebted | self.arrays.untaken
        m.d.comb += [
            self._owes.eq(owes.bit_select(self._item.volume, 1) | self.late.data),
            self.blame.slot.eq(self._item.slot),
            self.blame.volume.eq(self._item.volume),
        ]

    def _follow_streams(self, m: Module) -> None:
        """Connects what recognises streams that had better wait for the rest of their rows."""
        m.submodules.streams = streams = self._streams
        connect(m, flipped(self.ended), streams.ended)
        m.d.comb += [
            streams.extent.eq(self._item),
            streams.geometry.eq(self._shape),
            streams.impaired.eq(impaired(self.arrays)),
            streams.note.eq(self._starts),
            self._gathers.eq(streams.gathers),
        ]

    def _mend(self, m: Module) -> None:
        """Notes rows of which a drive could not read a block, as the read has gone on."""
        m.submodules.mends = mends = self._mends
        item, row = self._item, mends.row
        connect(m, mends.mend, flipped(self.mend))
        m.d.comb += [
            row.array.eq(item.array),
            row.base.eq(item.base),
            row.shift.eq(item.shift + Mux(self._mirrored, item.index * self._shape.copies, 0)),
            row.row.eq(item.row),
            row.source.eq(Mux(self._in_order, self._chosen, 0)),
            row.era.eq(self.arrays.eras[item.array]),
            mends.note.eq(self._gone_on & self._medium & self._redundant),
        ]

    def _send(self, m: Module) -> None:
        """Forms what is offered: operations, extents, refusals, and counts of flushes."""
        item, sent = self._item, self.operation.payload
        flushes = item.opcode == HostOpcode.FLUSH
        restarts = self._judged_restarts[self._port]
        m.d.comb += [
            self.gather.payload.eq(item),
            self.gather.payload.gathered.eq(self._gathers),
            self.rejected.payload.slot.eq(item.slot),
            self.rejected.payload.status.eq(item.status),
            self.unreadable.payload.slot.eq(item.slot),
            self.unreadable.payload.status.eq(Status.UNRECOVERED_READ),
            self.expected.payload.slot.eq(item.slot),
            self.expected.payload.array.eq(item.array),
            self.expected.payload.count.eq(self._live),
            sent.port.eq(self._port),
            sent.opcode.eq(Mux(flushes, Opcode.FLUSH, Opcode.READ)),
            sent.fua.eq(item.fua),
            sent.recover.again.eq(item.recover.again),
            sent.recover.tried.eq(Mux(flushes, restarts, self._tried)),
            sent.recover.copy.eq(self._chosen),
            sent.recover.ordered.eq(self._in_order | ~self._mirrored),
            sent.recover.era.eq(self.arrays.eras[item.array]),
            sent.dated.eq(self._mirrored & (item.opcode == HostOpcode.READ)),
            sent.restarts.eq(restarts),
            sent.alone.eq(item.recover.again),
            sent.block.eq(self._row),
            sent.blocks.eq(item.blocks),
            sent.owner.eq(Owner.COMMAND),
            sent.index.eq(item.slot),
            sent.place.eq(item.offset),
        ]

    def _take(self, m: Module) -> None:
        """TAKE, REJECT, GATHER: takes an extent; passes on what asks no drive here."""
        taken = self.extent.payload
        with m.State("TAKE"):
            m.d.comb += self.extent.ready.eq(1)
            m.d.sync += self._item.eq(taken)
            with m.If(self.extent.valid):
                with m.If(taken.status != Status.SUCCESS):
                    m.next = "REJECT"
                with m.Elif(taken.opcode == HostOpcode.WRITE):
                    m.next = "GATHER"
                with m.Else():
                    m.next = "LOOK"

        with m.State("REJECT"):
            _offer(m, self.rejected, "TAKE")

        with m.State("GATHER"):
            _offer(m, self.gather, "TAKE")
            reads = self._item.opcode == HostOpcode.READ
            m.d.comb += self._gone_on.eq(self.gather.ready & reads)

    def _look(self, m: Module) -> None:
        """LOOK, PREFER, MEASURE: reads the geometry; sets off the choice of a copy, or the walk
        over the members."""
        item, shape, found = self._item, self._shape, self.reads.geometry.data
        with m.State("LOOK"):
            m.d.sync += [
                Assert(found.valid, "an extent of no array"),
                Assert(found.width != 0, "an extent of an array of width 0"),
                shape.eq(found),
                self._turn.eq((item.row >> found.strip_shift) + item.index),
                self._first_row.eq(data_offset(self._config, found) + item.row),
            ]
            m.next = "PREFER"
            with m.If(item.opcode == HostOpcode.FLUSH):
                m.next = "MEASURE"

        # What a group is follows the geometry by a cycle.
        with m.State("MEASURE"):
            m.d.sync += [
                Cat(self._position, self._walk_place, self._walk_span).eq(0),
                Cat(self._dead, self._live, self._lost, self._targets, self._suspects).eq(0),
                Cat(self._judged_restarts).eq(Cat(self.restarts)),
            ]
            with m.If(~self.drives.undecided):
                m.next = "ASK"

        with m.State("PREFER"):
            asked = item.recover.tried != 0
            # The block is nowhere up to the copy that was asked.
            passes = self._medium & item.recover.ordered if self._config.background else 1
            again = Mux(asked, ~passes, 1)
            following = Mux(asked, _above(item.recover.copy, shape), self._preferred)
            m.d.comb += self._starts.eq(1)
            m.d.sync += [
                Cat(self._judged_restarts).eq(Cat(self.restarts)),
                self._first.eq(item.shift + item.index * shape.copies),
                self._in_order.eq(self._differ),
                self._in_place.eq(self._unproven),
                self._copy.eq(Mux(self._differ & again, 0, following)),
                self._left.eq(shape.copies),
                self._tried.eq(item.recover.tried),
                self._found.eq(0),
            ]
            m.next = "CHOOSE"
            with m.If(self._unproven):
                # What the others give may be anything: only if its drive has nothing.
                with m.If(asked & self._medium):
                    m.next = "GATHER"
            with m.Elif(self._exhausted & (shape.parities > 0)):
                m.next = "GATHER"
            with m.Elif(item.recover.tried >= self._most):
                m.next = "REFUSE"

    def _choose_copy(self, m: Module) -> None:
        """CHOOSE, PROBE: looks a copy up; takes it, unless several are weighed."""
        item, shape, member = self._item, self._shape, self.reads.member.data
        with m.State("CHOOSE"):
            place = Mux(self._turns, self._place - shape.width, self._place)
            # Copies that do not fit in a stripe go on in the next one.
            stripe = Mux(self._turns & self._mirrored, 1 << shape.strip_shift, 0)
            m.d.comb += self.reads.member.address.position.eq(item.base + place)
            m.d.sync += self._w_row.eq(self._first_row + stripe)
            m.next = "PROBE"

        with m.State("PROBE"):
            m.d.sync += [self._w_port.eq(member), self._w_failed.eq(self._unreadable)]
            m.next = "WEIGH"
            with m.If(~self._weighs):
                m.d.sync += [
                    self._port.eq(member),
                    self._row.eq(self._w_row),
                    self._chosen.eq(self._copy),
                ]
                with m.If(~self._unreadable & ~self._gathers):
                    m.next = "READ"
                    with m.If(self._in_place & (item.recover.tried >= self._attempts)):
                        m.next = "REFUSE"
                with m.Elif(shape.parities > 0):
                    m.next = "GATHER"
                with m.Else():
                    m.d.sync += [
                        self._tried.eq(self._tried + 1),
                        self._copy.eq(_above(self._copy, shape)),
                    ]
                    m.next = "CHOOSE"
                    with m.If(self._tried + 1 >= self._most):
                        m.next = "REFUSE"

    def _weigh_copy(self, m: Module) -> None:
        """WEIGH, COMPARE: a live copy whose port has less to do is the best so far."""
        with m.State("WEIGH"):
            reads_on = self._follows.reads[0].data == self._w_row[:FOLLOW_BITS]
            m.d.sync += self._w_weight.eq(self.load_read.data + Mux(reads_on, 0, RUN_BLOCKS))
            m.next = "COMPARE"

        with m.State("COMPARE"):
            m.d.sync += [
                self._left.eq(self._left - 1),
                self._copy.eq(_above(self._copy, self._shape)),
            ]
            m.next = "CHOOSE"
            with m.If(~self._w_failed & (~self._found | (self._w_weight < self._weight))):
                m.d.sync += [
                    self._found.eq(1),
                    self._weight.eq(self._w_weight),
                    self._port.eq(self._w_port),
                    self._row.eq(self._w_row),
                    self._chosen.eq(self._copy),
                ]
            with m.If(self._left == 1):
                m.next = "READ"
                with m.If(~self._found & self._w_failed):
                    m.next = "REFUSE"

    def _read(self, m: Module) -> None:
        """READ, REFUSE: asks the drive, or says of every block that no drive has it."""
        item = self._item
        with m.State("READ"):
            _offer(m, self.operation, "TAKE")
            m.d.comb += self._gone_on.eq(self.operation.ready)
            with m.If(self.operation.ready):
                m.d.comb += self._follows.store(
                    address=self._port, data=self._row + item.blocks + 1
                )

        with m.State("REFUSE"):
            m.d.comb += self.unreadable.valid.eq(1)
            with m.If(self.unreadable.ready):
                m.d.sync += item.blocks.eq(item.blocks - 1)
                with m.If(item.blocks == 0):
                    m.next = "TAKE"

    def _count_members(self, m: Module) -> None:
        """ASK, COUNT: a member at a time, who is asked, and whether its group has lost data."""
        shape, position = self._shape, self._position
        with m.State("ASK"):
            m.d.comb += self.reads.member.address.position.eq(position)
            m.next = "COUNT"

        with m.State("COUNT"):
            group_dead = Signal(WIDTH_BITS)
            after = Signal(WIDTH_BITS)
            member = Signal(MAX_DRIVES)
            # A member of two groups is asked once.
            asks = ~self._unflushed & ~(self._targets & member).any()
            m.d.comb += [
                group_dead.eq(self._dead + self._untrusted),
                member.eq(1 << self.reads.member.data),
                after.eq(Mux(self._mirrored & (position + 1 == shape.width), 0, position + 1)),
            ]
            m.d.sync += [
                position.eq(after),
                self._walk_place.eq(self._walk_place + 1),
                self._live.eq(self._live + asks + (self._migration_target & ~self._targets).any()),
                self._dead.eq(group_dead),
                self._targets.eq(
                    self._targets | Mux(self._unflushed, 0, member) | self._migration_target
                ),
                self._suspects.eq(self._suspects | (member & self.drives.suspect)),
            ]
            with m.If(group_dead > self._tolerance):
                m.d.sync += self._lost.eq(1)
            m.next = "ASK"
            with m.If(self._walk_place + 1 == self._group):
                m.d.sync += [
                    self._walk_place.eq(0),
                    self._walk_span.eq(self._walk_span + 1),
                    self._dead.eq(0),
                ]
                with m.If(Mux(self._mirrored, after == 0, self._walk_span + 1 == shape.spans)):
                    m.next = "JUDGE"

    def _judge_flush(self, m: Module) -> None:
        """JUDGE: looks again if a drive changed meanwhile; refuses; or sends."""
        with m.State("JUDGE"):
            m.d.sync += [self._row.eq(0), self._port.eq(0)]
            m.next = "EXPECT"
            # A drive has restarted since its member was looked at, or is judged by now.
            with m.If(self.drives.undecided | (self._suspects & ~self.drives.suspect).any()):
                m.next = "MEASURE"
            # A member that is there but cannot be asked may not have what was written since.
            suspected = self._suspects.any()
            with m.Elif(self._lost | (self._live == 0) | self._owes | suspected):
                m.d.comb += [self.blame.blames.eq(1), self.blamed.eq(self._suspects)]
                m.d.sync += self._item.status.eq(Status.WRITE_FAULT)
                m.next = "REJECT"

    def _flush(self, m: Module) -> None:
        """EXPECT, FLUSH: says how many drives will answer; asks them."""
        with m.State("EXPECT"):
            _offer(m, self.expected, "FLUSH")

        with m.State("FLUSH"):
            m.d.comb += self.operation.valid.eq(self._targets[0])
            with m.If(~self._targets[0] | self.operation.ready):
                m.d.sync += [
                    self._targets.eq(self._targets >> 1),
                    self._port.eq(self._port + 1),
                ]
                with m.If(self._targets[1:] == 0):
                    m.next = "TAKE"

    def _rest(self, m: Module, rests) -> None:
        """Says whether there is work, though it may only wait for others."""
        outputs = [self.operation, self.gather, self.rejected, self.unreadable, self.expected]
        waits = Cat(output.valid & ~output.ready for output in outputs).any()
        walk = self.mend.walk
        aside = self._streams.busy | self._mends.busy | (walk.valid & walk.ready)
        m.d.comb += self.busy.eq((~waits & ~rests) | aside)


def _above(number, shape):
    """The copy after ``number``, in turn."""
    return Mux(number + 1 == shape.copies, 0, number + 1)


def _offer(m: Module, output, following: str) -> None:
    """Offers an item; goes to the state ``following`` as it is taken."""
    m.d.comb += output.valid.eq(1)
    with m.If(output.ready):
        m.next = following
