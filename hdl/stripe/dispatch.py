"""Reads go straight to a drive, flushes to all of them, the rest to the stripe engine."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.array_state import eras
from hdl.flow.extent import expected, extent
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.host_command import HostOpcode, Status, completion
from hdl.flow.operation import Opcode, Owner, load_bits, operation
from hdl.flow.recovery import ROUNDS, tried_bits
from hdl.flow.row import committed
from hdl.flow.table_read import copy_read, geometry_read, member_read
from hdl.flow.walk import walk
from hdl.kit.table import TableRead
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
    - FLUSH: `expected` says how many drives will answer, then each live member, and the drive that
      a member is copied to, gets one operation. An array that has lost data is rejected with
      WRITE_FAULT: in a span more drives are failed or not yet rebuilt than there are parities, or
      so are all drives that hold the copies of one strip; or its volume is ``indebted``; or a
      member is suspect, and so cannot be asked. The tables are looked at anew each time that a
      FLUSH is sent, once it is known of all drives what becomes of them, and the tracker sends it
      again when a drive went away meanwhile.
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
    geometry_read, member_read
        Tables.
    load_read
        How many blocks each port has to do (`hdl.drive.drives.Drives`).
    failed
        Bit a port: its drive cannot be used.
    redundant
        With ``slow_read_ms``: bit an array that is optimal or partially degraded.
    impaired, ended, ended_slot
        With ``gather_reads``: bit an array that has lost drives, but no data; a pulse when the
        command of a slot has completed.
    restarts
        With ``background``: how often the drive at a port has restarted. FLUSH operations say how
        often it had when they were judged, reads as it was seen whether copies may differ.
    suspect, undecided
        With ``background``: bit a port whose drive may have lost what it had not stored, so that a
        FLUSH takes it for failed; of some drives it is not known yet what becomes of them, which
        takes microseconds.
    eras
        With ``background``: how often each array has lost what was not flushed. That a drive could
        not read a block counts only in the era in which it was asked.
    indebted
        With ``background``: bit a volume that may have lost something that the host has not been
        told of yet.
    late
        With ``background``: whether the command in a slot began before its volume was told; such a
        FLUSH is refused, too (`hdl.background.debts.Debts`).
    blames, blamed, blamed_volume, blamed_slot
        With ``background``: a pulse as a FLUSH is refused, with its volume and slot, and those of
        the array's members that are suspect.
    stale, boundary_read
        With ``background``: bit a port whose drive is being rebuilt, and the first row of an array
        that is not yet. In an extent that goes so far the drive counts as failed for a read.
    unsynced, sync_read, doubts
        With ``background``: bit an array, and the first row of such an array, of which the copies
        may differ, and parities be anything; bit an array of which that is so everywhere. While
        drives are ``undecided``, it is of any array.
    copy_read
        With ``background``: the copy of an array.
    mend
        With ``background``: the row of a redundant array in which a drive could not read a block,
        once the block has been asked for by other means (`hdl.stripe.mends.Mends`). Where copies
        may differ, its ``source`` is the copy that was asked: that is what the block is from now
        on, even if a copy before it could be read later.
    noted, noted_array
        With ``background``: a pulse when such a row has been noted, and its array.

    Throughput: 6 cycles for a direct read, of mirrors 4 and 4 for each copy, if tried before 6 and
    2 for each copy passed over; 2 for a write; 2 a member of each group and 1 a port for a FLUSH.
    One extent at
    a time; back-pressure on any output holds the extents behind it.
    """

    def __init__(self, *, config: Config):
        self._config = config
        # A drive that hangs is given up with the last but one of these.
        self._attempts = config.drive_resets + 3
        background = {}
        if config.background:
            background = {
                "stale": In(MAX_DRIVES),
                "suspect": In(MAX_DRIVES),
                "restarts": In(tried_bits(config)).array(config.ports),
                "undecided": In(1),
                "eras": In(eras(config)),
                "indebted": In(config.volumes),
                "late": Out(TableRead(config.slot_bits, 1)),
                "blamed_slot": Out(config.slot_bits),
                "blames": Out(1),
                "blamed": Out(MAX_DRIVES),
                "blamed_volume": Out(config.volume_bits),
                "boundary_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "unsynced": In(config.arrays),
                "sync_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "doubts": In(config.arrays),
                "copy_read": Out(copy_read(config)),
                "mend": Out(stream.Signature(walk(config))),
                "noted": Out(1),
                "noted_array": Out(config.array_bits),
            }
        if config.slow_read_ms:
            background["redundant"] = In(config.arrays)
        if config.gather_reads:
            background["impaired"] = In(config.arrays)
            background |= {"ended": In(1), "ended_slot": In(config.slot_bits)}
        super().__init__(
            {
                **background,
                "extent": In(stream.Signature(extent(config))),
                "operation": Out(stream.Signature(operation(config))),
                "gather": Out(stream.Signature(extent(config))),
                "rejected": Out(stream.Signature(completion(config))),
                "unreadable": Out(stream.Signature(committed(config))),
                "expected": Out(stream.Signature(expected(config))),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "load_read": Out(TableRead(config.port_bits, load_bits(config))),
                "failed": In(MAX_DRIVES),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()

        item = Signal(extent(config))
        shape = Signal(geometry(config))
        port = Signal(config.port_bits)
        row = Signal(BLOCK_NUMBER_BITS)
        first_row = Signal(BLOCK_NUMBER_BITS)

        # Reads: the place of copy 0, and the copies left to try.
        first = Signal(WIDTH_BITS + 1)
        copy = Signal(COPY_BITS)
        tried = Signal(item.recover.tried.shape())
        place = Signal(WIDTH_BITS + 1)
        turns = Signal()
        turn = Signal(COPY_BITS)
        preferred = Signal(COPY_BITS)
        mirrored = Signal()
        weighs = Signal()
        # Copies may differ: whether that is so now, and whether the copy is chosen by it.
        differ, in_order = Signal(), Signal()
        # A row may be inconsistent: the same of what would be worked out.
        unproven, in_place = Signal(), Signal()
        m.d.comb += [
            mirrored.eq(shape.copies > 1),
            weighs.eq(mirrored & (item.recover.tried == 0) & ~in_order),
            place.eq(first + copy),
            turns.eq(place >= shape.width),
            preferred.eq((Cat(*reversed(list(turn))) * shape.copies) >> COPY_BITS),
        ]

        # A copy being weighed, and the best so far.
        m.submodules.follows = follows = Memory(
            shape=FOLLOW_BITS, depth=1 << config.port_bits, init=[]
        )
        follow_read, follow_write = follows.read_port(), follows.write_port()
        left = Signal(WIDTH_BITS)
        w_port = Signal(config.port_bits)
        w_row = Signal(BLOCK_NUMBER_BITS)
        w_failed = Signal()
        w_weight = Signal(load_bits(config) + 1)
        chosen = Signal(COPY_BITS)
        weight = Signal.like(w_weight)
        found = Signal()
        m.d.comb += [
            self.load_read.address.eq(self.member_read.data),
            follow_read.addr.eq(self.member_read.data),
            follow_write.addr.eq(port),
            follow_write.data.eq(row + item.blocks + 1),
        ]

        def copy_above(number):
            return Mux(number + 1 == shape.copies, 0, number + 1)

        # Flushes: a walk over the members, group by group, then over the ports that they are at.
        # Members that can replace each other are a group: those of a span, or as many as there are
        # copies, which go on past the width from place 0 until a group ends there (RAID 1E).
        position = Signal(WIDTH_BITS)
        walk_place = Signal(WIDTH_BITS)
        walk_span = Signal(WIDTH_BITS)
        group = Signal(WIDTH_BITS)
        tolerance = Signal(WIDTH_BITS)
        dead = Signal(WIDTH_BITS)
        live = Signal(WIDTH_BITS)
        lost = Signal()
        targets = Signal(MAX_DRIVES)
        m.d.sync += [
            group.eq(Mux(mirrored, shape.copies, shape.width)),
            tolerance.eq(Mux(mirrored, shape.copies - 1, shape.parities)),
        ]

        port_failed = Signal()
        unreadable = Signal()
        # Not to be flushed; not to be counted on.
        unflushed = Signal()
        untrusted = Signal()
        m.d.comb += [
            port_failed.eq(self.failed.bit_select(self.member_read.data, 1)),
            unreadable.eq(port_failed),
            unflushed.eq(port_failed),
            untrusted.eq(port_failed),
        ]
        if config.background:
            suspects = Signal(MAX_DRIVES)
            last_row = Signal(BLOCK_NUMBER_BITS)
            boundary = Signal(BLOCK_NUMBER_BITS)
            beyond = Signal()
            m.submodules.mends = mends = Mends(config=config)
            connect(m, mends.walk, flipped(self.mend))
            redundant = mirrored | (shape.parities > 0)
            port_stale = self.stale.bit_select(self.member_read.data, 1)
            # In every cycle: a rebuild may begin while copies are being weighed.
            m.d.sync += [
                last_row.eq(item.row + item.blocks),
                boundary.eq(self.boundary_read.data),
                beyond.eq(last_row >= boundary),
            ]
            m.d.comb += [
                self.boundary_read.address.eq(item.array),
                self.sync_read.address.eq(item.array),
                unreadable.eq(port_failed | (beyond & port_stale)),
                unflushed.eq(port_failed | self.suspect.bit_select(self.member_read.data, 1)),
                untrusted.eq(unflushed | port_stale),
                self.noted.eq(mends.noted),
                self.noted_array.eq(item.array),
                mends.row.array.eq(item.array),
                mends.row.base.eq(item.base),
                mends.row.shift.eq(item.shift + Mux(mirrored, item.index * shape.copies, 0)),
                mends.row.row.eq(item.row),
                mends.row.source.eq(Mux(in_order, chosen, 0)),
                mends.row.era.eq(self.eras[item.array]),
            ]

        # The drive that the member at `position` is copied to, in bits a port.
        copied = Signal(MAX_DRIVES)
        if config.background:
            entry = self.copy_read.data
            fails = self.failed.bit_select(entry.port, 1) | self.suspect.bit_select(entry.port, 1)
            lives = entry.valid & ~fails
            with m.If(lives & (entry.position == position)):
                m.d.comb += copied.eq(1 << entry.port)
            m.d.comb += self.copy_read.address.eq(item.array)

        undecided, indebted, suspected = Const(0), Const(0), Const(0)
        medium = Signal()
        # How often drives had restarted when a FLUSH was judged, or whether copies may differ.
        judged_restarts, restarts = None, Const(0)
        # How often the copies are asked: in order it may be one of them that has to be given up.
        most = Signal(tried.shape())
        more = Mux(mirrored, self._attempts, 0) if config.background else 0
        m.d.comb += most.eq(shape.copies * ROUNDS + more)
        if config.background:
            judged_restarts = Signal(data.ArrayLayout(tried_bits(config), config.ports))
            restarts = judged_restarts[port]
            suspected = suspects.any()
            undecided = self.undecided
            # What a drive could not read before it restarted it may give now.
            known = ~undecided & (item.recover.era == self.eras[item.array])
            m.d.comb += medium.eq(item.recover.medium & known)
            indebted = self.indebted.bit_select(item.volume, 1) | self.late.data
            m.d.comb += [self.late.address.eq(item.slot), self.blamed_slot.eq(item.slot)]
            m.d.comb += self.blamed_volume.eq(item.volume)
            open_row = self.unsynced.bit_select(item.array, 1) & (last_row >= self.sync_read.data)
            torn = self.doubts.bit_select(item.array, 1) | undecided
            m.d.comb += [
                differ.eq(mirrored & (open_row | torn)),
                unproven.eq((shape.parities > 0) & (open_row | torn)),
            ]

        exhausted = Signal()
        m.d.comb += exhausted.eq(item.recover.tried != 0)
        if config.slow_read_ms:
            lasts = self.redundant.bit_select(item.array, 1)
            m.d.comb += [
                self.operation.payload.elsewhere.eq(
                    lasts
                    & redundant
                    & (item.opcode == HostOpcode.READ)
                    & ~item.recover.tried.any()
                    & ~in_order
                    & ~in_place
                ),
                exhausted.eq(
                    (item.recover.tried >= ROUNDS)
                    | (item.recover.tried.any() & (lasts | item.recover.medium))
                ),
            ]

        gathers, goes_on = Const(0), Signal()
        if config.gather_reads:
            m.submodules.streams = streams = ReadStreams(config=config)
            gathers = streams.gathers
            m.d.comb += [
                streams.extent.eq(item),
                streams.geometry.eq(shape),
                streams.impaired.eq(self.impaired),
                streams.ended.eq(self.ended),
                streams.ended_slot.eq(self.ended_slot),
                streams.note.eq(goes_on),
            ]
        if config.intent_chunks:
            m.d.comb += self.expected.payload.array.eq(item.array)

        def mend(gone_on) -> None:
            if config.background:
                m.d.comb += mends.note.eq(gone_on & medium & redundant)

        m.d.comb += [
            self.geometry_read.address.eq(self.extent.payload.array),
            self.member_read.address.array.eq(item.array),
            self.gather.payload.eq(item),
            *([self.gather.payload.gathered.eq(gathers)] if config.gather_reads else []),
            self.rejected.payload.slot.eq(item.slot),
            self.rejected.payload.status.eq(item.status),
            self.unreadable.payload.slot.eq(item.slot),
            self.unreadable.payload.status.eq(Status.UNRECOVERED_READ),
            self.expected.payload.slot.eq(item.slot),
            self.expected.payload.count.eq(live),
            self.operation.payload.port.eq(port),
            self.operation.payload.opcode.eq(
                Mux(item.opcode == HostOpcode.FLUSH, Opcode.FLUSH, Opcode.READ)
            ),
            self.operation.payload.fua.eq(item.fua),
            self.operation.payload.recover.again.eq(item.recover.again),
            self.operation.payload.recover.tried.eq(
                Mux(item.opcode == HostOpcode.FLUSH, restarts, tried)
            ),
            self.operation.payload.recover.copy.eq(chosen),
            self.operation.payload.alone.eq(item.recover.again),
            self.operation.payload.block.eq(row),
            self.operation.payload.blocks.eq(item.blocks),
            self.operation.payload.owner.eq(Owner.COMMAND),
            self.operation.payload.index.eq(item.slot),
            self.operation.payload.place.eq(item.offset),
        ]

        if config.background:
            m.d.comb += [
                self.operation.payload.recover.ordered.eq(in_order | ~mirrored),
                self.operation.payload.recover.era.eq(self.eras[item.array]),
                self.operation.payload.dated.eq(mirrored & (item.opcode == HostOpcode.READ)),
                self.operation.payload.restarts.eq(restarts),
            ]

        def offer(output, following):
            m.d.comb += output.valid.eq(1)
            with m.If(output.ready):
                m.next = following

        with m.FSM(name="dispatch") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.extent.ready.eq(1)
                m.d.sync += item.eq(self.extent.payload)
                with m.If(self.extent.valid):
                    with m.If(self.extent.payload.status != Status.SUCCESS):
                        m.next = "REJECT"
                    with m.Elif(self.extent.payload.opcode == HostOpcode.WRITE):
                        m.next = "GATHER"
                    with m.Else():
                        m.next = "LOOK"

            with m.State("REJECT"):
                offer(self.rejected, "TAKE")

            with m.State("GATHER"):
                offer(self.gather, "TAKE")
                mend(self.gather.ready & (item.opcode == HostOpcode.READ))

            with m.State("LOOK"):
                m.d.sync += Assert(self.geometry_read.data.valid, "an extent of no array")
                m.d.sync += Assert(
                    self.geometry_read.data.width != 0, "an extent of an array of width 0"
                )
                m.d.sync += [
                    shape.eq(self.geometry_read.data),
                    turn.eq((item.row >> self.geometry_read.data.strip_shift) + item.index),
                    first_row.eq(DATA_OFFSET_BLOCKS + item.row),
                ]
                m.next = "PREFER"
                with m.If(item.opcode == HostOpcode.FLUSH):
                    m.next = "MEASURE"

            # What a group is follows the geometry by a cycle.
            with m.State("MEASURE"):
                m.d.sync += Cat(position, walk_place, walk_span, dead, live, lost, targets).eq(0)
                if config.background:
                    m.d.sync += suspects.eq(0)
                    m.d.sync += Cat(judged_restarts).eq(Cat(self.restarts))
                with m.If(~undecided):
                    m.next = "ASK"

            with m.State("PREFER"):
                # `passes`: the block is nowhere up to the copy that was asked.
                new, passes = item.recover.tried == 0, Const(1)
                if config.background:
                    passes = medium & item.recover.ordered
                    m.d.sync += Cat(judged_restarts).eq(Cat(self.restarts))
                following = Mux(new, preferred, copy_above(item.recover.copy))
                m.d.sync += [
                    first.eq(item.shift + item.index * shape.copies),
                    in_order.eq(differ),
                    in_place.eq(unproven),
                    copy.eq(Mux(differ & (new | ~passes), 0, following)),
                    left.eq(shape.copies),
                    tried.eq(item.recover.tried),
                    found.eq(0),
                ]
                m.d.comb += goes_on.eq(1)
                m.next = "CHOOSE"
                otherwise = m.If
                if config.background:
                    # What the others give may be anything: only if its drive has nothing.
                    with m.If(unproven):
                        with m.If(item.recover.tried.any() & medium):
                            m.next = "GATHER"
                    otherwise = m.Elif
                with otherwise(exhausted & (shape.parities > 0)):
                    m.next = "GATHER"
                with m.Elif(item.recover.tried >= most):
                    m.next = "REFUSE"

            with m.State("CHOOSE"):
                m.d.comb += self.member_read.address.position.eq(
                    item.base + Mux(turns, place - shape.width, place)
                )
                # Copies that do not fit in a stripe go on in the next one.
                m.d.sync += w_row.eq(first_row + Mux(turns & mirrored, 1 << shape.strip_shift, 0))
                m.next = "PROBE"

            with m.State("PROBE"):
                m.d.sync += [w_port.eq(self.member_read.data), w_failed.eq(unreadable)]
                m.next = "WEIGH"
                with m.If(~weighs):
                    m.d.sync += [port.eq(self.member_read.data), row.eq(w_row), chosen.eq(copy)]
                    with m.If(~unreadable & ~gathers):
                        m.next = "READ"
                        if config.background:
                            with m.If(in_place & (item.recover.tried >= self._attempts)):
                                m.next = "REFUSE"
                    with m.Elif(shape.parities > 0):
                        m.next = "GATHER"
                    with m.Else():
                        m.d.sync += [tried.eq(tried + 1), copy.eq(copy_above(copy))]
                        m.next = "CHOOSE"
                        with m.If(tried + 1 >= most):
                            m.next = "REFUSE"

            with m.State("WEIGH"):
                reads_on = follow_read.data == w_row[:FOLLOW_BITS]
                m.d.sync += w_weight.eq(self.load_read.data + Mux(reads_on, 0, RUN_BLOCKS))
                m.next = "COMPARE"

            with m.State("COMPARE"):
                m.d.sync += [left.eq(left - 1), copy.eq(copy_above(copy))]
                m.next = "CHOOSE"
                with m.If(~w_failed & (~found | (w_weight < weight))):
                    m.d.sync += [
                        found.eq(1),
                        weight.eq(w_weight),
                        port.eq(w_port),
                        row.eq(w_row),
                        chosen.eq(copy),
                    ]
                with m.If(left == 1):
                    m.next = "READ"
                    with m.If(~found & w_failed):
                        m.next = "REFUSE"

            with m.State("READ"):
                m.d.comb += follow_write.en.eq(self.operation.ready)
                mend(self.operation.ready)
                offer(self.operation, "TAKE")

            with m.State("REFUSE"):
                m.d.comb += self.unreadable.valid.eq(1)
                with m.If(self.unreadable.ready):
                    m.d.sync += item.blocks.eq(item.blocks - 1)
                    with m.If(item.blocks == 0):
                        m.next = "TAKE"

            with m.State("ASK"):
                m.d.comb += self.member_read.address.position.eq(position)
                m.next = "COUNT"

            with m.State("COUNT"):
                group_dead, after = Signal(WIDTH_BITS), Signal(WIDTH_BITS)
                member = Signal(MAX_DRIVES)
                # A member of two groups is asked once.
                asks = ~unflushed & ~(targets & member).any()
                m.d.comb += [
                    group_dead.eq(dead + untrusted),
                    member.eq(1 << self.member_read.data),
                    after.eq(Mux(mirrored & (position + 1 == shape.width), 0, position + 1)),
                ]
                m.d.sync += [
                    position.eq(after),
                    walk_place.eq(walk_place + 1),
                    live.eq(live + asks + (copied & ~targets).any()),
                    dead.eq(group_dead),
                    targets.eq(targets | Mux(unflushed, 0, member) | copied),
                ]
                if config.background:
                    m.d.sync += suspects.eq(suspects | (member & self.suspect))
                with m.If(group_dead > tolerance):
                    m.d.sync += lost.eq(1)
                m.next = "ASK"
                with m.If(walk_place + 1 == group):
                    m.d.sync += [walk_place.eq(0), walk_span.eq(walk_span + 1), dead.eq(0)]
                    with m.If(Mux(mirrored, after == 0, walk_span + 1 == shape.spans)):
                        m.next = "JUDGE"

            with m.State("JUDGE"):
                m.d.sync += [row.eq(0), port.eq(0)]
                m.next = "EXPECT"
                decided = m.If
                if config.background:
                    # A drive has restarted since its member was looked at, or is judged by now.
                    with m.If(undecided | (suspects & ~self.suspect).any()):
                        m.next = "MEASURE"
                    decided = m.Elif
                # A member that is there but cannot be asked may not have what was written since.
                with decided(lost | (live == 0) | indebted | suspected):
                    if config.background:
                        m.d.comb += [self.blames.eq(1), self.blamed.eq(suspects)]
                    m.d.sync += item.status.eq(Status.WRITE_FAULT)
                    m.next = "REJECT"

            with m.State("EXPECT"):
                offer(self.expected, "FLUSH")

            with m.State("FLUSH"):
                m.d.comb += self.operation.valid.eq(targets[0])
                with m.If(~targets[0] | self.operation.ready):
                    m.d.sync += targets.eq(targets >> 1)
                    m.d.sync += port.eq(port + 1)
                    with m.If(targets[1:] == 0):
                        m.next = "TAKE"

            outputs = [self.operation, self.gather, self.rejected, self.unreadable, self.expected]
            waits = Cat(output.valid & ~output.ready for output in outputs).any()
            aside = streams.busy if config.gather_reads else Const(0)
            if config.background:
                aside |= mends.busy | (self.mend.valid & self.mend.ready)
            rests = fsm.ongoing("TAKE") & ~self.extent.valid
            m.d.comb += self.busy.eq((~waits & ~rests) | aside)
        return m
