"""The controller behind any PCIe hard block: instances in dataflow order and their connections."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.mapping.mapper import Mapper
from hdl.array.references import References
from hdl.array.shares.command_shares import CommandShares
from hdl.array.tables.tables import ArrayTables
from hdl.array.tracker import Tracker
from hdl.background.background import Background
from hdl.config import LINE_RETURNS, LINE_USERS, LINE_WRITERS, TIME_BITS, Config
from hdl.drive.drives import Drives
from hdl.drive.flusher import FlushAll, Flusher
from hdl.flow.drive_port import DrivePort
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, landed, operation
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import RegisterBus
from hdl.flow.row import committed
from hdl.flow.walk import MEND_TAG, walk
from hdl.kit.cut import Relay, Skid
from hdl.kit.merge import Merge, split
from hdl.kit.queue import Queue
from hdl.memory.allocator import LineAllocator
from hdl.memory.shared_read import SharedRead
from hdl.memory.store import LineStore
from hdl.nvme.admin.names import IDENTITY_BITS, NONCE_BITS
from hdl.nvme.front_end import NvmeFrontEnd
from hdl.parity.runner import ParityPass
from hdl.pcie.endpoint import Endpoint
from hdl.pcie.tlp import RequestProgress, completion_beat, request_beat
from hdl.stripe.dispatch import Dispatch
from hdl.stripe.gather.gather import Gather
from hdl.stripe.mends import Mending
from hdl.stripe.rows.sequencer import Sequencer


class Core(wiring.Component):
    """Everything between the PCIe transaction layer and the drive ports.

    ``request``, ``completion``: memory requests to the host and what comes back; ``progress``: what
    the shim says of them. ``register``: the host's register accesses; what is read must not pass
    requests handed over before. ``posted``: memory writes handed over have not left. ``status``,
    ``reset_done``: the hard block's configuration space, and the end of a function level reset.
    ``drives``: the drive ports. ``now``: time in clock cycles, which may jump to ``deadline`` at
    most while ``quiet`` is 1 and no stream offers anything.
    ``temperature``: of the board in kelvin; 0 without a sensor.
    ``identity``: no other card's (the FPGA's device DNA, an EEPROM); ``nonce``: another number each
    time that power comes back (a true random number generator, a counter in an EEPROM), see
    `hdl.nvme.admin.names`.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        if config.lines < config.least_lines:
            raise ValueError(
                f"{config.lines} lines are too few for {config.ports} ports, which need at least"
                f" {config.least_lines}"
            )
        self._config = config
        super().__init__(
            {
                "request": Out(stream.Signature(request_beat(config))),
                "progress": In(RequestProgress()),
                "completion": In(stream.Signature(completion_beat(config))),
                "register": In(RegisterBus()),
                "posted": In(1),
                "status": Out(PcieStatus()),
                "reset_done": Out(1),
                "now": In(TIME_BITS),
                "temperature": In(16),
                "identity": In(IDENTITY_BITS),
                "nonce": In(NONCE_BITS),
                "quiet": Out(1),
                "deadline": Out(TIME_BITS),
                "drives": Out(DrivePort(config)).array(config.ports),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()

        m.submodules.endpoint = endpoint = Endpoint(config=config)
        m.submodules.front_end = front_end = NvmeFrontEnd(config=config)
        m.submodules.tables = tables = ArrayTables(
            config=config,
            geometry_readers=5 + 2 * config.background,
            member_readers=3 + config.background,
            volume_readers=3 + config.compare_and_deallocate + config.array_shares,
        )
        m.submodules.references = references = References(config=config)
        m.submodules.tracker = tracker = Tracker(config=config)
        m.submodules.mapper = mapper = Mapper(config=config)
        m.submodules.dispatch = dispatch = Dispatch(config=config)
        m.submodules.gather = gather = Gather(config=config)
        m.submodules.sequencer = sequencer = Sequencer(config=config)
        m.submodules.parity = parity = ParityPass(config=config)
        m.submodules.drives = drives = Drives(config=config)
        m.submodules.store = store = LineStore(config=config, readers=4, writers=LINE_WRITERS)
        m.submodules.allocator = allocator = LineAllocator(
            config=config,
            users=LINE_USERS,
            returns=LINE_RETURNS,
            reserves=config.line_reserves,
        )
        m.submodules.flusher = flusher = Flusher(config=config, users=2 + config.background)
        m.submodules.flush_all = flush_all = FlushAll()
        m.submodules.flush_cache = flush_cache = FlushAll()
        blocks = [endpoint, front_end, tables, tracker, mapper, dispatch, gather, sequencer]
        blocks += [parity, drives, store, allocator, references, flusher]
        blocks += [flush_all, flush_cache]

        # Host side: PCIe transactions and registers.
        connect(m, flipped(self.request), endpoint.request)
        connect(m, flipped(self.progress), endpoint.progress)
        connect(m, front_end.messages, endpoint.messages)
        connect(m, flipped(self.completion), endpoint.completion)
        connect(m, flipped(self.register), endpoint.register)
        connect(m, endpoint.target, front_end.register)
        for block in (endpoint, front_end):
            for name in PcieStatus().members:
                m.d.comb += getattr(block.status, name).eq(getattr(self.status, name))
        for block in (endpoint, front_end, gather, drives):
            m.d.comb += block.now.eq(self.now)
        m.d.comb += [
            endpoint.discard.eq(front_end.discard),
            front_end.host_idle.eq(endpoint.idle & ~self.posted),
            front_end.posted.eq(endpoint.posted | self.posted),
            flush_all.flush.eq(front_end.flush),
            front_end.flushed.eq(flush_all.flushed),
            flush_cache.flush.eq(front_end.flush_cache),
            front_end.cache_flushed.eq(flush_cache.flushed),
            front_end.cache_stored.eq(flush_cache.stored),
            self.reset_done.eq(front_end.reset_done),
        ]
        connect(m, front_end.read_request, endpoint.read_request)
        connect(m, endpoint.read_done, front_end.read_done)
        connect(m, endpoint.inbox_write, front_end.inbox_write)
        connect(m, front_end.write_request, endpoint.write_request)
        connect(m, endpoint.write_done, front_end.write_done)
        connect(m, front_end.post, endpoint.post)

        # Commands down: host, tracker, mapper, dispatch, then drives or rows.
        connect(m, front_end.command, tracker.host_command)
        if config.array_shares:
            m.submodules.shares = shares = CommandShares(config=config)
            blocks.append(shares)
            connect(m, tracker.command, shares.command)
            connect(m, shares.passed, mapper.command)
            m.d.comb += [
                shares.ended.eq(tracker.completion.valid & tracker.completion.ready),
                shares.ended_slot.eq(tracker.completion.payload.slot),
                shares.exists.eq(tables.exists),
                sequencer.exists.eq(tables.exists),
            ]
        else:
            connect(m, tracker.command, mapper.command)
        connect(m, mapper.extent, dispatch.extent)
        connect(m, dispatch.gather, gather.extent)
        connect(m, gather.launch, sequencer.launch)
        connect(m, sequencer.row_read, gather.row_read)
        connect(m, sequencer.strip_read, gather.strip_read)
        connect(m, sequencer.step, parity.step)
        connect(m, parity.done, sequencer.pass_done)
        if config.background:
            # Of blocks that could not be read, and of the row walker.
            m.submodules.mending = mending = Mending(config=config, inputs=3)
            connect(m, dispatch.mend, mending.inputs[0])
            connect(m, sequencer.mend[0], mending.inputs[1])
            connect(m, sequencer.mend[1], mending.inputs[2])
            m.submodules.walks = walks = Merge(walk(config), inputs=2)
            connect(m, walks.output, gather.walk)
            connect(m, mending.walk, walks.inputs[0])
            blocks += [mending, walks]
        m.submodules.operations = operations = Merge(operation(config), inputs=3)
        connect(m, sequencer.operation, operations.inputs[0])
        connect(m, dispatch.operation, operations.inputs[1])
        connect(m, flusher.operation, operations.inputs[2])
        m.submodules.operation_skid = operation_skid = Skid(operation(config))
        connect(m, operations.output, operation_skid.input)
        connect(m, operation_skid.output, drives.operation)
        connect(m, dispatch.load_read, drives.load_read)
        if config.early_rows:
            connect(m, drives.piece, sequencer.piece)

        # Host data: into lines for writes, out of lines for reads.
        connect(m, gather.fetch, front_end.fetch)
        connect(m, front_end.fetched, gather.fetched)
        m.submodules.deliveries = deliveries = Merge(landed(config), inputs=2)
        connect(m, drives.landed, deliveries.inputs[0])
        recovered = sequencer.recovered
        if config.gather_reads:
            # The link takes some 150 cycles for each block of a row; meanwhile the sequencer goes
            # on. Each block has a line of its own, so this is never full.
            m.submodules.recovered = queue = Queue(landed(config), config.lines)
            connect(m, recovered, queue.input)
            recovered = queue.output
            blocks.append(queue)
        connect(m, recovered, deliveries.inputs[1])
        connect(m, deliveries.output, front_end.deliver)

        # Completions up.
        m.submodules.finished_relay = finished_relay = Relay(finished(config))
        connect(m, drives.finished, finished_relay.input)
        # A drive that is failed by now, or may have lost what it held, has flushed nothing. Nor has
        # one that has restarted since the FLUSH was judged.
        heard = finished_relay.input.payload
        doubted = tables.failed.bit_select(heard.port, 1)
        if config.background:
            restarts = Array(tables.restarts)[heard.port]
            doubted |= tables.suspect.bit_select(heard.port, 1)
            doubted |= heard.recover.tried != restarts
            for user in (flusher, dispatch, sequencer, drives):
                for count, known in zip(user.restarts, tables.restarts, strict=True):
                    m.d.comb += count.eq(known)
        with m.If((heard.opcode == Opcode.FLUSH) & doubted):
            with m.If(drives.finished.payload.status == DriveStatus.GOOD):
                m.d.comb += heard.status.eq(DriveStatus.GONE)
        ended = finished_relay.output
        of_row = ended.payload.owner == Owner.ROW
        of_command = ended.payload.owner == Owner.COMMAND
        of_flush = ended.payload.opcode == Opcode.FLUSH
        split(
            m,
            ended,
            [
                (of_row, sequencer.finished),
                (ended.payload.owner == Owner.FLUSHER, flusher.finished),
                (of_command & of_flush, tracker.flushed),
                (of_command & ~of_flush, tracker.read_failed),
            ],
        )
        if not config.intent_chunks:
            connect(m, sequencer.retired, gather.retired)
        if config.sector_emulation:
            connect(m, sequencer.filled, gather.filled)
        m.submodules.commits = commits = Merge(committed(config), inputs=3)
        connect(m, sequencer.committed, commits.inputs[0])
        connect(m, gather.fetch_failed, commits.inputs[1])
        connect(m, dispatch.unreadable, commits.inputs[2])
        # The tracker takes one event at a time, so its choice would reach into every sender.
        events = []
        for name, sender, cut in (
            ("committed", commits.output, Skid),
            ("recover_failed", sequencer.recover_failed, Relay),
            ("rejected", dispatch.rejected, Relay),
        ):
            m.submodules[f"{name}_cut"] = link = cut(sender.payload.shape())
            connect(m, sender, link.input)
            connect(m, link.output, getattr(tracker, name))
            events.append(link)
        # Not this one: a flush must be expected before its first operation can end.
        connect(m, dispatch.expected, tracker.expected)
        connect(m, front_end.delivered, tracker.delivered)
        connect(m, tracker.completion, front_end.completion)

        # Lines: who gets them, who returns them, who moves their beats.
        for user, port in zip(
            (front_end, sequencer, drives, gather), allocator.allocate, strict=True
        ):
            connect(m, port, user.allocate)
        for user, port in zip(
            (front_end, sequencer, tracker, gather, drives), allocator.free, strict=True
        ):
            connect(m, user.free, port)
        m.d.comb += gather.available.eq(allocator.available)
        parity_read = parity.line_read
        if config.compare_and_deallocate:
            m.submodules.shared_read = shared_read = SharedRead(config=config)
            connect(m, parity.line_read, shared_read.users[0])
            connect(m, front_end.line_read, shared_read.users[1])
            parity_read = shared_read.line_read
        readers = [endpoint.line_read, parity_read, *drives.line_read]
        writers = [endpoint.line_write, parity.line_write, *drives.line_write, front_end.line_write]
        for user, port in zip(readers, store.read, strict=True):
            connect(m, user, port)
        for user, port in zip(writers, store.write, strict=True):
            connect(m, user, port)

        # Tables and drive health.
        geometries = [
            user.geometry_read for user in (front_end, mapper, dispatch, gather, sequencer)
        ]
        positions = [user.member_read for user in (front_end, dispatch, sequencer)]
        if config.background:
            m.submodules.background = background = Background(config=config)
            blocks.append(background)
            geometries += list(background.geometry_read)
            positions.append(background.member_read)
        for user, port in zip(geometries, tables.geometry_read, strict=True):
            connect(m, user, port)
        for user, port in zip(positions, tables.member_read, strict=True):
            connect(m, user, port)
        volumes = [front_end.volume_read, mapper.volume_read, references.volume_read]
        if config.compare_and_deallocate:
            volumes.append(front_end.size_read)
        if config.array_shares:
            volumes.append(shares.volume_read)
        for user, port in zip(volumes, tables.volume_read, strict=True):
            connect(m, user, port)
        connect(m, front_end.port_read, tables.port_read)

        # Who is inside, for changes that must wait until nobody is.
        connect(m, tables.quiesce, references.quiesce)
        m.d.comb += [
            references.begins.eq(front_end.begins),
            references.begun.eq(front_end.begun),
            references.ends.eq(front_end.ends),
            references.ended.eq(front_end.ended),
            front_end.volume_exists.eq(tables.volume_exists),
            references.takes.eq(gather.takes),
            references.taken.eq(gather.taken),
            references.gives.eq(gather.gives),
            references.given.eq(gather.given),
            references.exists.eq(tables.exists),
        ]

        if config.background:
            m.d.comb += tables.blamed.eq(dispatch.blamed | flush_cache.blamed)

        # Drives that are flushed before the power goes, or before they are trusted.
        for number, user in enumerate((flush_all, flush_cache)):
            connect(m, user.ask, flusher.ask[number])
            connect(m, flusher.told[number], user.told)
            m.d.comb += [user.used.eq(tables.used), user.failed.eq(tables.failed)]
            if config.background:
                has_failed = background.array_states[::2] & background.array_states[1::2]
                m.d.comb += [
                    user.lost.eq(has_failed.any() | background.indebted.any()),
                    user.settled.eq(background.settled),
                ]
            else:
                # Without the arrays' states any failed drive may be one too many.
                lost = (tables.used & tables.failed).any()
                m.d.comb += [user.lost.eq(lost), user.settled.eq(1)]
        if not config.background:
            connect(m, front_end.manage_request, tables.manage_request)
            connect(m, tables.manage_response, front_end.manage_response)
        # Always taken; a drive that is given up waits for one that failed to store data.
        m.d.comb += [
            tables.fail.valid.eq(sequencer.fail.valid | drives.fail.valid),
            tables.fail.payload.eq(
                Mux(sequencer.fail.valid, sequencer.fail.payload, drives.fail.payload)
            ),
            sequencer.fail.ready.eq(1),
            drives.fail.ready.eq(~sequencer.fail.valid),
        ]
        if config.background:
            self._connect_background(m, background, tables, front_end, tracker, dispatch, drives)
            connect(m, background.walk, walks.inputs[1])
            connect(m, sequencer.walked, background.walked)
            walked = sequencer.walked
            m.d.comb += mending.ended.eq(
                walked.valid & walked.ready & (walked.payload.tag == MEND_TAG)
            )
            if config.intent_chunks:
                self._connect_intent(m, background, tracker, dispatch, gather, sequencer)
            m.d.comb += background.now.eq(self.now)
            for user, port in zip((sequencer, dispatch), background.sync_read, strict=True):
                connect(m, user.sync_read, port)
                m.d.comb += user.unsynced.eq(background.unsynced)
            m.d.comb += [
                dispatch.doubts.eq(background.doubts),
                sequencer.doubts.eq(
                    background.doubts | Mux(tables.undecided, (1 << config.arrays) - 1, 0)
                ),
                sequencer.essential.eq(background.essential),
                sequencer.settled.eq(background.settled),
            ]
            for user, port in zip((sequencer, dispatch), background.boundary_read, strict=True):
                connect(m, user.boundary_read, port)
                m.d.comb += user.stale.eq(tables.stale)
            for user, port in zip((sequencer, dispatch, background), tables.copy_read, strict=True):
                connect(m, user.copy_read, port)
            connect(m, dispatch.late, background.late)
            m.d.comb += [
                front_end.told.eq(background.told),
                front_end.tells.eq(background.tells),
            ]
            connect(m, tables.flush, flusher.ask[2])
            connect(m, flusher.told[2], tables.flushed)
            m.d.comb += references.notes.eq(Cat(dispatch.noted, sequencer.noted))
            arrays = dispatch.noted_array, *sequencer.noted_arrays
            for number, array in zip(references.noted, arrays, strict=True):
                m.d.comb += number.eq(array)
            m.d.comb += [
                sequencer.eras.eq(background.eras),
                sequencer.undecided.eq(tables.undecided),
                dispatch.eras.eq(background.eras),
            ]
        present = Cat(port.present for port in self.drives)
        m.d.comb += [
            tables.restarted.eq(Cat(port.restarted for port in self.drives)),
            tables.present.eq(present),
            front_end.drive_present.eq(present),
            front_end.drive_used.eq(tables.used),
            front_end.temperature.eq(self.temperature),
            front_end.identity.eq(self.identity),
            front_end.nonce.eq(self.nonce),
        ]
        if config.sector_emulation:
            m.d.comb += front_end.drive_emulated.eq(Cat(port.emulated for port in self.drives))
        for block in (front_end, dispatch, sequencer, drives):
            failed = block.drive_failed if block is front_end else block.failed
            m.d.comb += failed.eq(tables.failed)
        if config.intent_chunks:
            for port, identity in zip(self.drives, tables.identity, strict=True):
                m.d.comb += identity.eq(port.identity)
        capacities = Array(port.capacity for port in self.drives)
        asked = front_end.drive_capacity_read
        m.d.sync += asked.data.eq(capacities[asked.address])
        for table_capacity, port, inner in zip(
            tables.capacity, self.drives, drives.drives, strict=True
        ):
            m.d.comb += table_capacity.eq(port.capacity)
            connect(m, flipped(port), inner)

        earliest = front_end.deadline
        timed = [gather, endpoint, drives] + ([background] if config.background else [])
        for block in timed:
            earliest = Mux(block.deadline < earliest, block.deadline, earliest)
        plumbing = [operations, operation_skid, finished_relay, deliveries, commits, *events]
        m.d.comb += [
            self.quiet.eq(~Cat(block.busy for block in blocks + plumbing).any()),
            self.deadline.eq(earliest),
        ]
        return m

    def _connect_intent(
        self, m: Module, background, tracker, dispatch, gather, sequencer
    ) -> None:
        """Rows that are written, and flushes, for the write-intent bitmap."""
        connect(m, sequencer.begun, background.begun)
        # A row slot is given back to both at once.
        retired = sequencer.retired
        users = gather.retired, background.retired
        for user, other in (users, reversed(users)):
            m.d.comb += [
                user.payload.eq(retired.payload),
                user.valid.eq(retired.valid & other.ready),
            ]
        m.d.comb += retired.ready.eq(users[0].ready & users[1].ready)
        # A drive that is flushed, or that found its row written, is heard of much later.
        expects, ends = dispatch.expected, tracker.completion
        m.d.sync += [
            background.flush.eq(expects.valid & expects.ready),
            background.flushing.slot.eq(expects.payload.slot),
            background.flushing.array.eq(expects.payload.array),
            background.completed.eq(ends.valid & ends.ready),
            background.completion.eq(ends.payload),
        ]

    def _connect_background(
        self, m: Module, background, tables, front_end, tracker, dispatch, drives
    ) -> None:
        """Background work between the host's commands and the tables."""
        config = self._config
        connect(m, front_end.manage_request, background.request)
        connect(m, background.response, front_end.manage_response)
        connect(m, background.table_request, tables.manage_request)
        connect(m, tables.manage_response, background.table_response)
        connect(m, tables.rewind, background.rewind)
        connect(m, front_end.report_read, background.report_read)
        m.d.comb += background.report_shows.eq(front_end.report_shows)
        commands = Signal(range(config.commands + 1))
        begins = front_end.command.valid & front_end.command.ready
        ends = tracker.completion.valid & tracker.completion.ready
        m.d.sync += commands.eq(commands + begins - ends)
        m.d.comb += [
            background.host_active.eq(commands != 0),
            background.present.eq(tables.present),
            background.used.eq(tables.used),
            background.failed.eq(tables.failed),
            background.stale.eq(tables.stale),
            background.changed.eq(tables.changed),
            background.suspect.eq(tables.suspect),
            background.kept.eq(tables.kept),
            background.undecided.eq(tables.undecided),
            background.blames.eq(dispatch.blames),
            background.blamed_volume.eq(dispatch.blamed_volume),
            drives.doubted.eq(tables.suspect & ~tables.kept),
            dispatch.undecided.eq(tables.undecided),
            dispatch.indebted.eq(background.indebted),
            background.blamed_slot.eq(dispatch.blamed_slot),
            background.slot_begins.eq(front_end.begins),
            background.slot_begun.eq(front_end.begun),
            background.slot_ends.eq(front_end.ends),
            background.slot_ended.eq(front_end.ended),
            background.answers.eq(front_end.answers),
            background.answer.eq(front_end.answer),
            background.heard.eq(front_end.heard),
            background.unheard.eq(front_end.unheard),
            background.returns.eq(tables.returns),
            tables.yields.eq(background.yields),
            tables.keeps.eq(background.keeps),
            tables.given_up.eq(background.given_up),
            tables.doubts.eq(background.doubts),
            dispatch.suspect.eq(tables.suspect),
            tables.reserved.eq(background.reserved),
            front_end.drive_stale.eq(tables.stale),
            front_end.array_states.eq(background.array_states),
            front_end.array_unsynced.eq(background.unsynced),
            front_end.array_assumed.eq(background.assumed),
            front_end.array_news.eq(background.news),
        ]
        if config.gather_reads:
            # Partially degraded, degraded: 1 and 2 of `ArrayState`.
            low, high = (Cat(background.array_states[bit::2]) for bit in (0, 1))
            m.d.comb += [
                dispatch.impaired.eq(low ^ high),
                dispatch.ended.eq(ends),
                dispatch.ended_slot.eq(tracker.completion.payload.slot),
            ]
        if config.slow_read_ms:
            # Optimal or partially degraded: `ArrayState` has 0 in its upper bit.
            m.d.comb += dispatch.redundant.eq(~Cat(background.array_states[1::2]))
