"""Admission of launched rows: where the roles lie, which drives are left, what to do, lines."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.shares.turnstile import Turnstile
from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, OPERATIONS_PER_BLOCK, Config
from hdl.flow.array_state import eras
from hdl.flow.intention import intention
from hdl.flow.line import line_stream
from hdl.flow.row import RowKind, row_state
from hdl.flow.table_read import copy_read, geometry_read, member_read
from hdl.flow.walk import WalkKind, walk
from hdl.kit.bits import lowest_bit, ones
from hdl.kit.queue import Queue
from hdl.kit.table import TableRead
from hdl.stripe.mends import Mends
from hdl.stripe.planning.plan import PlanKind
from hdl.stripe.planning.planner import Planner
from hdl.stripe.planning.program import copy_target, program, role_bits, target, target_bits
from hdl.stripe.planning.program import targets as target_count
from hdl.stripe.planning.row_members import RowMembers
from hdl.stripe.rows.progress import unread
from hdl.stripe.walks.walk_plan import WalkPlan

SELDOM_WRITE = (WalkKind.REBUILD, WalkKind.SALVAGE, WalkKind.CHECK, WalkKind.PATROL)
"""Walks that write only what cannot be read, or is marked as to be written already."""


class Admission(wiring.Component):
    """Turns a launched row, or one whose reads failed, into a program with all the lines it needs.

    One row at a time takes lines, and takes all of them before the next, so rows cannot starve
    each other; the sequencer behind it never waits for a line. ``launch`` and ``again`` queue as
    many row slots as there are, so neither is ever refused for long.

    With ``Config.array_shares``: while there are several arrays (``exists``) a row takes its lines
    when they are within its array's share (`hdl.array.shares.turnstile`); else it waits in a queue
    of its array and is planned anew, and those of other arrays go on. So no row waits for lines
    that the rows of another array's drives have. What is counted is the lines, or as many as the
    row sends operations for which nothing else counts: those of a walk or of what is made
    unreadable, and those of a mirrored block beyond `OPERATIONS_PER_BLOCK`. It counts until
    ``ended``, ``ended_slot``: a row has ended, or is planned again, so that operations of its last
    phase are counted although lines may be free by then.

    ``launch``: row slots to begin. ``again``: row slots whose reads failed; ``bad`` is then read
    for the roles that could not be read. ``ready``: row slots whose program may be run.
    With ``slow_read_ms``, roles that are only ``slow`` among them are waited for once the others do
    not do, unless another drive, which is to be rebuilt, has taken their place.
    ``mend`` (with ``background``): the row of a host's read in which a drive could not read a
    block; ``noted`` pulses when one of ``noted_array`` has been noted.
    ``program_read``, ``target_read``, ``line_read``: what was worked out, for the sequencer;
    addresses are the row slot, below it the target or the role. ``stale``: bit a port whose drive
    is being rebuilt; ``boundary_read``: the first row of an array that is not yet. From there on
    it is not read, and what is written to a row is written to it as well. ``copy_read``: the copy
    of an array, whose drive gets what its member gets, as target `copy_target` (of mirrors in rows
    of one strip, as the gatherer makes them). ``unsynced``: bit an array; ``sync_read``: the first
    row of such an array whose parities may be anything, unless the host has written it since. From
    there on no row is updated: all its parities are generated from data, and what a host reads is
    worked out only if its drive has nothing. ``doubts``: bit an array of which that is so of every
    row, as drives have restarted and ``unsynced`` may not say so yet. ``eras``: how often each
    array has lost what was not flushed; the program says how often it had when the row was planned.
    All with ``background``; without, no row of an array is updated that was not taken to be
    consistent.
    ``begun`` (with ``intent_chunks``): a row that may be written, before its drives are judged; of
    walks that only write what they cannot read, once that has happened. What these write to stale
    drives, as REBUILD does, is marked already or is there already.

    About 12 + width cycles a row, one more for each line (mirrors: one for each copy instead of
    width). Back-pressure: waits for lines and for ``ready``.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        health = {}
        if config.background:
            health = {
                "stale": In(MAX_DRIVES),
                "boundary_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "unsynced": In(config.arrays),
                "doubts": In(config.arrays),
                "eras": In(eras(config)),
                "sync_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "copy_read": Out(copy_read(config)),
                "mend": Out(stream.Signature(walk(config))),
                "noted": Out(1),
                "noted_array": Out(config.array_bits),
            }
        if config.intent_chunks:
            health["begun"] = Out(stream.Signature(intention(config)))
        if config.array_shares:
            health |= {"exists": In(config.arrays), "ended": In(1), "ended_slot": In(slot)}
        super().__init__(
            {
                **health,
                "launch": In(stream.Signature(slot)),
                "again": In(stream.Signature(slot)),
                "ready": Out(stream.Signature(slot)),
                "row_read": Out(TableRead(slot, row_state(config))),
                "unread_read": Out(TableRead(slot, unread(config))),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "failed": In(MAX_DRIVES),
                "allocate": In(line_stream(config)),
                "program_read": In(TableRead(slot, program(config))),
                "target_read": In(TableRead(slot + target_bits(config), target(config))),
                "line_read": In(TableRead(slot + role_bits(config), config.line_bits)),
                "busy": Out(1),
            }
        )

    def _counted(self, lines: Value, operations: Value) -> Value:
        """What a row counts for: ``operations`` are those that nothing else counts."""
        return Mux(operations > lines, operations, lines)

    def _is_news(self, waited: Signal) -> Value:
        """Whether unreadable blocks are told: not again of a row that has ``waited`` meanwhile."""
        return ~waited

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.planner = planner = Planner(config=config)
        launches = Queue(config.row_slot_bits, config.rows)
        retries = Queue(config.row_slot_bits, config.rows)
        m.submodules.launches = launches
        m.submodules.retries = retries
        connect(m, flipped(self.launch), launches.input)
        connect(m, flipped(self.again), retries.input)

        m.submodules.programs = programs = Memory(
            shape=program(config), depth=config.rows, init=[]
        )
        m.submodules.targets = targets = Memory(
            shape=target(config), depth=config.rows << target_bits(config), init=[]
        )
        m.submodules.lines = lines = Memory(
            shape=config.line_bits, depth=config.rows << role_bits(config), init=[]
        )
        for memory, port in (
            (programs, self.program_read),
            (targets, self.target_read),
            (lines, self.line_read),
        ):
            read = memory.read_port()
            m.d.comb += [read.addr.eq(port.address), port.data.eq(read.data)]
        program_write = programs.write_port()
        target_write = targets.write_port()
        line_write = lines.write_port()

        slot = Signal(config.row_slot_bits)
        retried = Signal()
        todo = Signal(program(config))
        row = self.row_read.data
        geometry = self.geometry_read.data
        walks = row.walk.any if config.background else Const(0)
        has_copies = geometry.copies > 1
        mirrored = has_copies & ~walks
        recover = row.kind == RowKind.RECOVER
        fills = row.fills if config.sector_emulation else Const(0, 1)
        gathered = row.gathered if config.gather_reads else Const(0, 1)
        reads = recover & ~fills
        m.d.comb += [
            self.row_read.address.eq(slot),
            self.unread_read.address.eq(slot),
            self.geometry_read.address.eq(row.array),
            program_write.addr.eq(slot),
            program_write.data.eq(todo),
            self.ready.payload.eq(slot),
        ]

        if config.intent_chunks:
            m.d.comb += [
                self.begun.payload.slot.eq(slot),
                self.begun.payload.array.eq(row.array),
                self.begun.payload.row.eq(row.row),
            ]

        # A row has no more members than there are drive ports.
        data = Signal(range(config.ports + 1))
        m.d.comb += data.eq(geometry.data)

        members = RowMembers(
            config=config,
            row=row,
            geometry=geometry,
            todo=todo,
            walks=walks,
            mirrored=mirrored,
            fills=fills,
        )
        members.take_answers(m, ports=self, slot=slot, target_write=target_write)
        copies, copied = members.copies, members.copied
        # Copies that are not read, and are written anew.
        passed = Signal(config.ports)
        if config.background:
            of_copy = walks & (row.walk.kind == WalkKind.COPY)
            timely = row.walk.any & (row.walk.era == todo.era)
            m.d.comb += passed.eq(Mux(timely, (1 << row.walk.source) - 1, 0))
            # What drives could not read in another era they may give now: such a row begins anew.
            m.submodules.planned = planned_eras = Memory(
                shape=ERA_BITS, depth=config.rows, init=[]
            )
            planned_era, note_era = planned_eras.read_port(), planned_eras.write_port()
            m.d.comb += [
                planned_era.addr.eq(slot),
                note_era.addr.eq(slot),
                note_era.data.eq(todo.era),
            ]
            m.d.comb += program_write.data.write[copy_target(config)].eq(
                copies & (of_copy | todo.write.bit_select(todo.copied, 1))
            )

        parity_mask = Signal(4)
        data_mask = Signal(config.ports)
        dead_parities = Signal(4)
        live_parities = Signal(4)
        salvage = Signal()
        m.d.comb += [
            parity_mask.eq((1 << geometry.parities) - 1),
            data_mask.eq((1 << data) - 1),
            dead_parities.eq(todo.dead >> data),
            live_parities.eq(parity_mask & ~dead_parities),
        ]
        request = planner.request.payload
        m.d.comb += [
            request.kind.eq(Mux(walks, RowKind.RECOVER, row.kind)),
            request.data.eq(data),
            request.parities.eq(geometry.parities),
            request.joined.eq(Mux(gathered, 0, row.joined)),
            request.dead.eq(todo.dead),
            request.bad.eq(todo.bad & ~todo.dead),
            request.unsynced.eq(members.unsynced),
        ]
        plan = planner.plan.payload
        if config.background:
            m.d.comb += request.stale.eq(todo.stale)
            m.submodules.walk_plan = walk_plan = WalkPlan(config=config)
            m.d.comb += [
                walk_plan.kind.eq(row.walk.kind),
                walk_plan.again.eq(retried),
                walk_plan.mirrored.eq(has_copies),
                walk_plan.every.eq((1 << members.roles) - 1),
                walk_plan.data.eq(data),
                walk_plan.parities.eq(geometry.parities),
                walk_plan.dead.eq(todo.dead),
                walk_plan.bad.eq(todo.bad),
                walk_plan.stale.eq(todo.stale),
                walk_plan.copied.eq(Mux(copies, 1 << todo.copied, 0)),
                walk_plan.plan.eq(plan),
            ]

        def follow_walk_plan() -> None:
            names = ("possible", "read", "erased", "use_parity", "generate", "write")
            of_walks = (*names, "checks", "withheld", "single", "source")
            for name in of_walks if config.background else ():
                m.d.sync += getattr(todo, name).eq(getattr(walk_plan, name))

        # A block to be filled is read where it lies, from the first copy that can be.
        readable = Signal(target_count(config))
        in_place = Const(0, 1)
        if config.sector_emulation:
            in_place = fills & (readable.any() | (geometry.parities == 0))
            m.d.comb += readable.eq(
                Mux(mirrored, todo.write, row.joined & ~todo.dead & data_mask) & ~todo.bad
            )
            m.d.sync += todo.fills.eq(fills)

        # Reads gathered: the row is worked out for the sake of blocks that are lost, if it can be.
        # Else, as any block that is to be had from others, they are read where they lie.
        in_reach = Signal(config.ports)
        m.d.comb += in_reach.eq(row.joined & ~todo.dead & ~todo.bad & data_mask)
        if config.gather_reads:
            m.d.sync += todo.gathered.eq(gathered)

        # A host's read of a drive that is slow ends so while the others do; else it waits for it.
        doubtful = reads & members.unsynced if config.background else Const(0)
        unproven = doubtful & ~gathered
        slow, answered = Const(0, config.ports), planner.plan.valid
        if config.slow_read_ms:
            slow, waited_for = Signal(config.ports), Signal(config.ports)
            # A drive that has taken the place of a slow one meanwhile has nothing to wait for.
            m.d.comb += waited_for.eq(slow & ~todo.stale)
            held_up = ((plan.kind == PlanKind.IMPOSSIBLE) | doubtful) & waited_for.any()
            answered = planner.plan.valid & ~held_up
            lost = todo.dead | todo.bad | Mux(gathered, 0, row.joined[: config.ports])
            spare = Signal()
            patient = Signal()
            m.d.comb += spare.eq(ones(lost) < geometry.parities)
            m.d.sync += todo.elsewhere.eq(reads & spare & ~patient & ~doubtful)

        # Blocks that a drive could not give to a host are written anew.
        if config.background:
            m.submodules.mends = mends = Mends(config=config)
            connect(m, mends.walk, flipped(self.mend))
            unreadable = todo.bad & ~slow & ~todo.dead & ~todo.stale
            m.d.comb += [
                self.noted.eq(mends.noted),
                self.noted_array.eq(row.array),
                mends.row.array.eq(row.array),
                mends.row.base.eq(row.base),
                mends.row.shift.eq(row.shift),
                mends.row.row.eq(row.row),
            ]

        pending = Signal(config.ports)
        wanted = lowest_bit(m, pending, "wanted")
        m.d.comb += [
            line_write.addr.eq(Cat(wanted, slot)),
            line_write.data.eq(self.allocate.payload),
        ]

        share, waits_for_share, planned = None, Const(0), "PUBLISH"
        waited = Signal()
        if config.array_shares:
            planned = "WEIGH"
            m.submodules.share = share = Turnstile(
                config=config,
                count=config.rows,
                total=config.shared_lines,
                least=config.ports,
                most=config.rows * config.ports,
            )
            m.submodules.refusals = refusals = Memory(shape=1, depth=config.rows, init=[])
            refused_read, refused_write = refusals.read_port(), refusals.write_port()
            given_back = self.again.valid & self.again.ready
            uncounted, sends = Signal(), Signal(range(target_count(config) + 1))
            held = Signal(range(config.ports + 1))
            m.d.comb += [
                uncounted.eq(walks | todo.salvage if config.background else 0),
                share.exists.eq(self.exists),
                # The sequencer does one of them at a time.
                share.ended.eq(self.ended | given_back),
                share.ended_number.eq(Mux(given_back, self.again.payload, self.ended_slot)),
                share.number.eq(slot),
                share.array.eq(row.array),
                refused_read.addr.eq(share.woken.payload),
                refused_write.addr.eq(slot),
                refused_write.data.eq(retried),
                refused_write.en.eq(share.refused),
            ]
            m.d.sync += [held.eq(ones(pending)), sends.eq(ones(program_write.data.write))]
            beyond = Mux(sends > OPERATIONS_PER_BLOCK, sends - OPERATIONS_PER_BLOCK, 0)
            others = Mux(uncounted, sends, Mux(mirrored, beyond, 0))
            m.d.comb += share.amount.eq(self._counted(held, others))
            waits_for_share = share.calls

        with m.FSM(name="admit") as fsm:
            with m.State("TAKE"):
                m.d.sync += [retried.eq(retries.output.valid), waited.eq(0)]
                first_of = m.If
                if share is not None:
                    first_of = m.Elif
                    with m.If(share.calls):
                        m.d.comb += share.woken.ready.eq(1)
                        m.d.sync += slot.eq(share.woken.payload)
                        with m.If(share.woken.valid):
                            m.d.sync += [waited.eq(1), retried.eq(refused_read.data)]
                            m.next = "READ-ROW"
                with first_of(retries.output.valid):
                    m.d.comb += retries.output.ready.eq(1)
                    m.d.sync += slot.eq(retries.output.payload)
                    m.next = "READ-ROW"
                with m.Elif(launches.output.valid):
                    m.d.comb += launches.output.ready.eq(1)
                    m.d.sync += slot.eq(launches.output.payload)
                    m.next = "READ-ROW"
            with m.State("READ-ROW"):
                m.next = "READ-GEOMETRY"
            with m.State("READ-GEOMETRY"):
                members.begin(m)
                m.d.sync += todo.eq(0)
                if config.background:
                    m.d.sync += todo.era.eq(self.eras[row.array])
                m.next = "LOCATE"
                if config.intent_chunks:
                    looks = Cat(row.walk.kind == kind for kind in SELDOM_WRITE).any()
                    named = row.walk.source != 0
                    intends = ~recover & ~(walks & ~retried & looks & ~named)
                    m.d.comb += self.begun.valid.eq(intends)
                    with m.If(intends & ~self.begun.ready):
                        m.next = "READ-GEOMETRY"
            with m.State("LOCATE"):
                goes_on = retried
                if config.background:
                    goes_on = retried & (planned_era.data == todo.era)
                m.d.sync += Assert(geometry.valid, "a row of no array is planned")
                m.d.sync += Assert(geometry.width != 0, "a row of width 0 is planned")
                m.d.sync += [
                    todo.kind.eq(row.kind),
                    todo.fua.eq(row.fua),
                    todo.more.eq(row.more),
                    todo.row.eq(row.row),
                    todo.joined.eq(row.joined),
                    todo.mirrored.eq(mirrored),
                    todo.data.eq(data),
                    todo.parities.eq(geometry.parities),
                    todo.shift.eq(row.shift),
                    todo.rotation.eq(geometry.rotation),
                    todo.strip_shift.eq(geometry.strip_shift),
                    todo.bad.eq(Mux(goes_on, self.unread_read.data.bad, passed)),
                    retried.eq(goes_on),
                    todo.possible.eq(1),
                ]
                if config.array_shares or config.background:
                    m.d.sync += todo.array.eq(row.array)
                if config.slow_read_ms:
                    m.d.sync += slow.eq(Mux(goes_on, self.unread_read.data.slow, 0))
                    m.d.sync += patient.eq(0)
                if config.background:
                    m.d.sync += [todo.walk.eq(row.walk), todo.again.eq(goes_on)]
                    m.d.sync += [todo.base.eq(row.base), todo.place.eq(row.shift)]
                members.locate(m)
            members.states(m)
            with m.State("PLAN"):
                if config.background:
                    with m.If(copies):
                        m.d.comb += [
                            target_write.addr.eq(Cat(Const(copy_target(config)), slot)),
                            target_write.data.eq(copied),
                            target_write.en.eq(1),
                        ]
                with m.If(mirrored & ~in_place):
                    m.d.sync += todo.possible.eq(~recover)
                    m.next = planned
                with m.Elif((geometry.parities == 0) & ~walks & ~in_place):
                    m.d.sync += [
                        todo.possible.eq(~recover),
                        todo.write.eq(row.joined & ~todo.dead),
                    ]
                    m.next = planned
                if config.sector_emulation:
                    with m.Elif(in_place):
                        m.d.sync += [
                            todo.possible.eq(readable.any()),
                            todo.read.eq(readable & -readable),
                            todo.write.eq(0),
                        ]
                        m.next = planned
                if config.background:
                    with m.Elif(walks & (geometry.parities == 0)):
                        follow_walk_plan()
                        m.next = "COUNT"
                with m.Else():
                    m.d.comb += planner.request.valid.eq(1)
                    with m.If(planner.request.ready):
                        m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += planner.plan.ready.eq(1)
                if config.slow_read_ms:
                    with m.If(planner.plan.valid & held_up):
                        m.d.sync += [todo.bad.eq(todo.bad & ~waited_for), slow.eq(0), patient.eq(1)]
                        m.next = "PLAN"
                with m.If(answered):
                    m.d.sync += [
                        todo.possible.eq(plan.kind != PlanKind.IMPOSSIBLE),
                        todo.update.eq(plan.kind == PlanKind.UPDATE),
                        todo.use_parity.eq(plan.use_parity),
                        todo.erased.eq(plan.erased),
                        todo.read.eq(plan.read_data | (plan.read_parity << data)),
                    ]
                    with m.If(~recover):
                        with m.If(plan.kind != PlanKind.WRITE_ONLY):
                            m.d.sync += todo.generate.eq(live_parities)
                    with m.If(walks):
                        follow_walk_plan()
                    if config.background:
                        solvable = plan.kind != PlanKind.IMPOSSIBLE
                        m.d.comb += mends.note.eq(
                            reads & solvable & unreadable.any() & self._is_news(waited)
                        )
                    if config.gather_reads or config.slow_read_ms or config.background:
                        none_lost = (gathered | unproven) & (
                            in_reach == row.joined[: config.ports]
                        )
                        falls_back = reads if config.slow_read_ms else gathered
                        impossible = falls_back & (plan.kind == PlanKind.IMPOSSIBLE)
                        with m.If(none_lost | impossible):
                            m.d.sync += [
                                todo.possible.eq(in_reach.any()),
                                todo.read.eq(in_reach),
                                todo.erased.eq(0),
                                todo.use_parity.eq(0),
                            ]
                    if config.background:
                        kept_by_parity = row.joined & (todo.dead | todo.stale)
                        m.d.comb += salvage.eq(
                            (plan.kind == PlanKind.IMPOSSIBLE)
                            & ~(walks | recover | kept_by_parity.any() | walk_plan.too_many)
                            & todo.bad.any()
                        )
                        with m.If(salvage):
                            m.d.sync += [
                                todo.possible.eq(1),
                                todo.salvage.eq(1),
                                todo.generate.eq(0),
                            ]
                    m.next = "COUNT"
            with m.State("COUNT"):
                outputs = Mux(recover, row.joined, todo.erased & ~row.joined)
                if config.gather_reads:
                    outputs = Mux(gathered, row.joined & (todo.read | todo.erased), outputs)
                need = Signal(config.ports)
                m.d.comb += need.eq(todo.read | Mux(fills, 0, outputs) | (todo.generate << data))
                if config.background:
                    with m.If(walks & (todo.walk.kind == WalkKind.ZERO)):
                        m.d.comb += need.eq(1 << todo.source)
                with m.If(todo.possible):
                    m.d.sync += [todo.aux.eq(need), pending.eq(need)]
                    written = todo.generate
                    if config.background:
                        written = Mux(todo.salvage, live_parities, todo.generate)
                    with m.If(~recover & ~walks):
                        m.d.sync += todo.write.eq(
                            (row.joined & ~todo.dead & data_mask) | (written << data)
                        )
                    m.next = "ALLOCATE" if share is None else planned
                with m.Else():
                    m.next = planned
            if share is not None:
                with m.State("WEIGH"):
                    m.next = "SHARE"
                with m.State("SHARE"):
                    m.d.comb += share.ask.eq(1)
                    with m.If(share.granted):
                        m.next = "ALLOCATE"
                    with m.If(share.refused):
                        m.d.sync += pending.eq(0)
                        m.next = "TAKE"
            with m.State("ALLOCATE"):
                with m.If(pending == 0):
                    m.next = "PUBLISH"
                with m.Else():
                    m.d.comb += self.allocate.ready.eq(1)
                    with m.If(self.allocate.valid):
                        m.d.comb += line_write.en.eq(1)
                        m.d.sync += pending.eq(pending & (pending - 1))
            with m.State("PUBLISH"):
                m.d.comb += program_write.en.eq(1)
                if config.background:
                    m.d.comb += note_era.en.eq(1)
                m.next = "OFFER"
            with m.State("OFFER"):
                m.d.comb += self.ready.valid.eq(1)
                with m.If(self.ready.ready):
                    m.next = "TAKE"

        waiting = fsm.ongoing("ALLOCATE") & (pending != 0) & ~self.allocate.valid
        idle = (
            fsm.ongoing("TAKE")
            & ~launches.output.valid
            & ~retries.output.valid
            & ~waits_for_share
        )
        m.d.comb += self.busy.eq(
            ~(waiting | idle) | (launches.level != 0) & idle | (retries.level != 0) & idle
        )
        if share is not None:
            with m.If(share.busy):
                m.d.comb += self.busy.eq(1)
        if config.background:
            with m.If(mends.busy | (self.mend.valid & self.mend.ready)):
                m.d.comb += self.busy.eq(1)
        return m
