"""The controller behind any PCIe hard block: instances in dataflow order and their connections."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.mapping.mapper import Mapper
from hdl.array.references import References
from hdl.array.shares.command_shares import CommandShares
from hdl.array.tables.tables import ArrayTables
from hdl.array.tracker import Tracker
from hdl.background.background import Background
from hdl.config import (
    BACKUP_OPERATIONS,
    LINE_RETURNS,
    LINE_USERS,
    LINE_WRITERS,
    TIME_BITS,
    Config,
)
from hdl.drive.drives import Drives
from hdl.drive.flusher import FlushAll, Flusher
from hdl.flow.backup_pins import BackupPins
from hdl.flow.drive_port import DrivePort
from hdl.flow.line import write_beat
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, landed, operation
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import RegisterBus
from hdl.flow.row import committed
from hdl.flow.walk import MEND_TAG, walk
from hdl.kit.clock import earlier
from hdl.kit.cut import Relay, Skid
from hdl.kit.merge import FirstOf, Interleave, Merge, split
from hdl.kit.queue import Queue
from hdl.memory.allocator import LineAllocator
from hdl.memory.shared_read import SharedRead
from hdl.memory.store import LineStore
from hdl.metadata.metadata import Metadata
from hdl.metadata.withheld import Withheld
from hdl.nvme.admin.names import IDENTITY_BITS, NONCE_BITS
from hdl.nvme.front_end import NvmeFrontEnd
from hdl.parity.runner import ParityPass
from hdl.pcie.endpoint import Endpoint
from hdl.pcie.tlp import RequestProgress, completion_beat, request_beat
from hdl.redo.redo import Redo
from hdl.stripe.dispatch import Dispatch
from hdl.stripe.gather.gather import Gather
from hdl.stripe.mends import Mending
from hdl.stripe.rows.sequencer import Sequencer


class Core(wiring.Component):
    """Everything between the PCIe transaction layer and the drive ports.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request, completion, progress
        Memory requests to the host, what comes back, and what the shim says of requests.
    register
        The host's register accesses. What is read must not pass requests handed over before.
    posted
        Memory writes that were handed over have not left.
    status, reset_done
        The hard block's configuration space; the function level reset is done.
    now, quiet, deadline
        Time in clock cycles. It may jump, to ``deadline`` at most, while ``quiet`` is 1 and no
        stream offers anything.
    temperature
        Of the board in kelvin; 0 without a sensor.
    identity
        A number that no other card has (the FPGA's device DNA, an EEPROM).
    nonce
        Another number each time that power comes back (a true random number generator, a counter in
        an EEPROM), see `hdl.nvme.admin.names`.
    drives
        The drive ports. With ``backup_blocks`` the last one is that of the backup flash.
    backup
        With ``backup_blocks``: the pins of the backup unit.
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
            | ({"backup": Out(BackupPins())} if config.backup_blocks else {})
        )

        marks = config.durable_marks
        # In the order of the dataflow, from the host to the drives.
        self._endpoint = Endpoint(config=config)
        self._front_end = NvmeFrontEnd(config=config)
        self._tables = ArrayTables(
            config=config,
            geometry_readers=5 + 2 * config.background + 2 * config.metadata + marks,
            member_readers=3 + config.background + 2 * config.metadata + marks,
            volume_readers=3
            + config.compare_and_deallocate
            + config.array_shares
            + 2 * config.metadata,
        )
        self._references = References(config=config)
        self._tracker = Tracker(config=config)
        self._mapper = Mapper(config=config)
        self._dispatch = Dispatch(config=config)
        self._gather = Gather(config=config)
        self._sequencer = Sequencer(config=config)
        self._parity = ParityPass(config=config)
        self._drives = Drives(config=config)
        self._store = LineStore(config=config, readers=4, writers=LINE_WRITERS)
        self._allocator = LineAllocator(
            config=config,
            users=LINE_USERS,
            returns=LINE_RETURNS,
            reserves=config.line_reserves,
        )
        self._flusher = Flusher(config=config, users=2 + config.background + marks)
        self._flush_all, self._flush_cache = FlushAll(), FlushAll()
        if config.array_shares:
            self._shares = CommandShares(config=config)
        if config.background:
            self._background = Background(config=config)
            # Rows to be mended, and of the row walker.
            self._mending = Mending(config=config, inputs=3)
            self._walks = Merge(walk(config), inputs=2)
        if config.metadata:
            self._metadata = Metadata(config=config)
            self._withheld = Withheld(config=config)
        if config.backup_blocks:
            self._redo = Redo(config=config)

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        blocks = self._add_blocks(m)
        self._connect_host(m)
        self._connect_commands(m)
        plumbing = self._connect_operations(m)
        plumbing += self._connect_data(m)
        plumbing += self._connect_drive_answers(m)
        plumbing += self._connect_completions(m)
        self._connect_lines(m)
        self._connect_table_reads(m)
        self._connect_references(m)
        self._connect_flushes(m)
        self._connect_drives(m)
        if config.background:
            self._connect_background(m)
            self._connect_health(m)
            self._connect_in_sync(m)
            self._connect_walks(m)
        else:
            connect(m, self._front_end.table_changes, self._tables.changes)
        if config.metadata:
            self._connect_metadata(m)
        if config.backup_blocks:
            self._connect_redo(m)
        elif config.metadata:
            m.d.comb += self._metadata.replayed.eq(1)
        if config.intent_chunks:
            self._connect_intent(m)
        else:
            connect(m, self._sequencer.retired, self._gather.retired)

        timed = [self._gather, self._endpoint, self._drives]
        if config.background:
            timed.append(self._background)
        if config.durable_marks:
            timed.append(self._metadata)
        if config.backup_blocks:
            timed.append(self._redo)
        earliest = self._front_end.deadline
        for block in timed:
            sooner = earlier(self.now, block.deadline, earliest)
            earliest = Mux(sooner, block.deadline, earliest)
        m.d.comb += [
            self.quiet.eq(~Cat(block.busy for block in blocks + plumbing).any()),
            self.deadline.eq(earliest),
        ]
        return m

    def _add_blocks(self, m: Module) -> list:
        """Returns the blocks."""
        config = self._config
        names = ["endpoint", "front_end", "tables", "references", "tracker", "mapper", "dispatch"]
        names += ["gather", "sequencer", "parity", "drives", "store", "allocator", "flusher"]
        names += ["flush_all", "flush_cache"]
        if config.array_shares:
            names.append("shares")
        if config.background:
            names += ["mending", "walks", "background"]
        if config.metadata:
            names.append("metadata")
        if config.backup_blocks:
            names.append("redo")
        blocks = []
        for name in names:
            block = getattr(self, f"_{name}")
            m.submodules[name] = block
            blocks.append(block)
        return blocks

    def _connect_host(self, m: Module) -> None:
        """PCIe transactions, registers, and time."""
        endpoint, front_end = self._endpoint, self._front_end
        connect(m, flipped(self.request), endpoint.request)
        connect(m, flipped(self.progress), endpoint.progress)
        connect(m, flipped(self.completion), endpoint.completion)
        connect(m, flipped(self.register), endpoint.register)
        connect(m, endpoint.target, front_end.register)
        connect(m, front_end.host, endpoint.host)
        connect(m, flipped(self.status), endpoint.status, front_end.status)
        for block in (endpoint, front_end, self._gather, self._drives):
            m.d.comb += block.now.eq(self.now)
        m.d.comb += [
            endpoint.posted.eq(self.posted),
            self.reset_done.eq(front_end.reset_done),
            front_end.temperature.eq(self.temperature),
            front_end.card.identity.eq(self.identity),
            front_end.card.nonce.eq(self.nonce),
        ]

    def _connect_commands(self, m: Module) -> None:
        """Commands down: host, tracker, mapper, dispatch, rows."""
        config, tracker, mapper, tables = self._config, self._tracker, self._mapper, self._tables
        gather, sequencer, parity = self._gather, self._sequencer, self._parity
        connect(m, self._front_end.commands.command, tracker.host_command)
        if config.array_shares:
            shares = self._shares
            connect(m, tracker.command, shares.command)
            connect(m, shares.passed, mapper.command)
            m.d.comb += [
                shares.ended.valid.eq(tracker.completion.valid & tracker.completion.ready),
                shares.ended.payload.eq(tracker.completion.payload.slot),
                shares.exists.eq(tables.exists),
                sequencer.exists.eq(tables.exists),
            ]
        else:
            connect(m, tracker.command, mapper.command)
        connect(m, mapper.extent, self._dispatch.extent)
        connect(m, self._dispatch.gather, gather.extent)
        connect(m, gather.launch, sequencer.launch)
        connect(m, sequencer.row_read, gather.row_read)
        connect(m, sequencer.strip_read, gather.strip_read)
        connect(m, sequencer.step, parity.step)
        connect(m, parity.done, sequencer.pass_done)
        connect(m, sequencer.filled, gather.filled)

    def _connect_operations(self, m: Module) -> list:
        """Operations of rows, commands and flushes, to the drives."""
        config, drives, sequencer = self._config, self._drives, self._sequencer
        connect(m, self._dispatch.load_read, drives.load_read)
        connect(m, drives.piece, sequencer.piece)
        users = 4 + config.metadata
        m.submodules.operations = operations = Merge(operation(config), inputs=users)
        m.submodules.operation_skid = skid = Skid(operation(config))
        connect(m, sequencer.operation, operations.inputs[0])
        connect(m, self._dispatch.operation, operations.inputs[1])
        connect(m, self._flusher.operation, operations.inputs[2])
        connect(m, sequencer.flush, operations.inputs[3])
        if config.backup_blocks:
            self._until_power_fails(m, self._metadata.operation, operations.inputs[4])
        elif config.metadata:
            connect(m, self._metadata.operation, operations.inputs[4])
        connect(m, operations.output, skid.input)
        if config.backup_blocks:
            return [operations, skid, self._put_backup_first(m, skid.output)]
        connect(m, skid.output, drives.operation)
        return [operations, skid]

    def _until_power_fails(self, m: Module, source, destination) -> None:
        """Superblocks stay as they are once the redo record is made."""
        fails = self._redo.recalls
        m.d.comb += [
            destination.payload.eq(source.payload),
            destination.valid.eq(source.valid & ~fails),
            source.ready.eq(destination.ready & ~fails),
        ]

    def _put_backup_first(self, m: Module, others) -> Merge:
        """Operations of the backup unit are taken whatever others wait for. Returns where."""
        config, drives = self._config, self._drives
        m.submodules.backup_first = merge = Merge(operation(config), inputs=2)
        has_room = Signal()
        m.d.sync += has_room.eq(drives.room > BACKUP_OPERATIONS)
        m.d.comb += [
            merge.inputs[0].payload.eq(others.payload),
            merge.inputs[0].valid.eq(others.valid & has_room),
            others.ready.eq(merge.inputs[0].ready & has_room),
        ]
        connect(m, self._redo.operation, merge.inputs[1])
        connect(m, merge.output, drives.operation)
        return merge

    def _connect_data(self, m: Module) -> list:
        """Host data: into lines for writes, out of lines for reads."""
        config, front_end, gather = self._config, self._front_end, self._gather
        plumbing = []
        connect(m, gather.fetch, front_end.blocks.fetch)
        connect(m, front_end.blocks.fetched, gather.fetched)
        recovered = self._sequencer.recovered
        if config.gather_reads:
            # The link takes some 150 cycles for each block of a row; meanwhile the sequencer goes
            # on. Each block has a line of its own, so this is never full.
            m.submodules.recovered = queue = Queue(landed(config), config.lines)
            plumbing.append(queue)
            connect(m, recovered, queue.input)
            recovered = queue.output
        m.submodules.deliveries = deliveries = Merge(landed(config), inputs=2)
        connect(m, self._drives.landed, deliveries.inputs[0])
        if config.backup_blocks:
            # The host may be gone once the power fails.
            with m.If(self._redo.recalls):
                m.d.comb += [
                    deliveries.inputs[0].valid.eq(0),
                    self._drives.landed.ready.eq(1),
                ]
        connect(m, recovered, deliveries.inputs[1])
        connect(m, deliveries.output, front_end.blocks.deliver)
        return [*plumbing, deliveries]

    def _connect_drive_answers(self, m: Module) -> list:
        """How operations ended, to who asked for them."""
        config, tables, tracker = self._config, self._tables, self._tracker
        finishes = self._drives.finished
        m.submodules.finished_relay = relay = Relay(finished(config))
        connect(m, finishes, relay.input)
        # A drive that is failed by now, or may have lost what it held, has flushed nothing. Nor has
        # one that has restarted since the FLUSH was judged.
        heard = relay.input.payload
        doubted = (tables.drives.failed & config.arrays_ports).bit_select(heard.port, 1)
        if config.background:
            restarts = Array(tables.restarts)[heard.port]
            doubted |= tables.drives.suspect.bit_select(heard.port, 1)
            doubted |= heard.recover.tried != restarts
        with m.If((heard.opcode == Opcode.FLUSH) & doubted):
            with m.If(finishes.payload.status == DriveStatus.GOOD):
                m.d.comb += heard.status.eq(DriveStatus.GONE)
        ended = relay.output
        of_row = ended.payload.owner == Owner.ROW
        of_command = ended.payload.owner == Owner.COMMAND
        of_flush = ended.payload.opcode == Opcode.FLUSH
        of_flusher, for_rows = ended.payload.owner == Owner.FLUSHER, ended.payload.place[0]
        routes = [
            (of_row, self._sequencer.finished),
            (of_flusher & ~for_rows, self._flusher.finished),
            (of_flusher & for_rows, self._sequencer.flushed),
            (of_command & of_flush, tracker.flushed),
            (of_command & ~of_flush, tracker.read_failed),
        ]
        of_metadata = ended.payload.owner == Owner.METADATA
        of_backup = of_metadata & ended.payload.place[1]
        if config.backup_blocks:
            routes.append((of_backup, self._redo.finished))
            of_metadata &= ~ended.payload.place[1]
        if config.metadata:
            routes.append((of_metadata, self._metadata.finished))
        split(m, ended, routes)
        if config.backup_blocks:
            # Once the power fails nobody else waits for a drive.
            with m.If(self._redo.recalls & ~of_backup):
                m.d.comb += ended.ready.eq(1)
                m.d.comb += [user.valid.eq(0) for _, user in routes]
        return [relay]

    def _connect_completions(self, m: Module) -> list:
        """Completions up: what is known of the blocks of commands, and when they end."""
        sequencer, dispatch, tracker = self._sequencer, self._dispatch, self._tracker
        m.submodules.commits = commits = Merge(committed(self._config), inputs=3)
        connect(m, sequencer.committed, commits.inputs[0])
        connect(m, self._gather.fetch_failed, commits.inputs[1])
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
        connect(m, self._front_end.blocks.delivered, tracker.delivered)
        if self._config.metadata:
            events.append(self._withhold(m))
        else:
            connect(m, tracker.completion, self._front_end.commands.completion)
        return [commits, *events]

    def _withhold(self, m: Module) -> Withheld:
        """Completions wait for what must be written down first. Returns where they wait."""
        m.submodules.withheld = withheld = self._withheld
        commands = self._front_end.commands
        connect(m, self._tracker.completion, withheld.ended)
        connect(m, withheld.told, commands.completion)
        m.d.comb += [
            withheld.begun.valid.eq(commands.command.valid & commands.command.ready),
            withheld.begun.payload.eq(commands.command.payload),
            withheld.holds.eq(self._metadata.withholds),
            withheld.forsaken.eq(self._metadata.forsaken),
        ]
        return withheld

    def _connect_lines(self, m: Module) -> None:
        """Lines: who gets them, who returns them, who moves their beats."""
        endpoint, front_end, parity = self._endpoint, self._front_end, self._parity
        sequencer, drives, gather = self._sequencer, self._drives, self._gather
        allocator, store = self._allocator, self._store
        takers = front_end.lines, sequencer, drives, gather
        for user, port in zip(takers, allocator.allocate, strict=True):
            connect(m, port, user.allocate)
        givers = front_end.lines, sequencer, self._tracker, gather, drives
        for user, port in zip(givers, allocator.free, strict=True):
            connect(m, user.free, port)
        m.d.comb += gather.available.eq(allocator.available)
        parity_read = parity.line_read
        if self._config.compare_and_deallocate:
            m.submodules.shared_read = shared_read = SharedRead(config=self._config)
            connect(m, parity.line_read, shared_read.users[0])
            connect(m, front_end.lines.read, shared_read.users[1])
            parity_read = shared_read.line_read
        other_write = front_end.lines.write
        if self._config.metadata:
            parity_read, other_write = self._share_lines(m, parity_read, other_write)
        readers = [endpoint.line_read, parity_read, *drives.line_read]
        writers = [endpoint.line_write, parity.line_write, *drives.line_write]
        writers.append(other_write)
        for user, port in zip(readers, store.read, strict=True):
            connect(m, user, port)
        for user, port in zip(writers, store.write, strict=True):
            connect(m, user, port)

    def _share_lines(self, m: Module, line_read, line_write) -> tuple:
        """Pages of metadata are read and written beside these users. Returns the shared ports."""
        config, metadata = self._config, self._metadata
        first_line = config.free_lines
        if config.backup_blocks:
            redo = self._redo
            m.submodules.redo_read = redo_read = SharedRead(config=config)
            m.submodules.redo_write = redo_write = Interleave(write_beat(config))
            connect(m, line_read, redo_read.users[0])
            connect(m, redo.line_read, redo_read.users[1])
            connect(m, line_write, redo_write.inputs[0])
            connect(m, redo.line_write, redo_write.inputs[1])
            line_read, line_write = redo_read.line_read, redo_write.output
            m.d.comb += redo.page_line.eq(first_line)
            first_line += 1
        m.submodules.page_read = page_read = SharedRead(config=self._config)
        m.submodules.page_write = page_write = Interleave(write_beat(self._config))
        connect(m, line_read, page_read.users[0])
        connect(m, metadata.line_read, page_read.users[1])
        connect(m, line_write, page_write.inputs[0])
        connect(m, metadata.line_write, page_write.inputs[1])
        m.d.comb += [
            metadata.first_page.eq(self._config.lines - self._config.moved_pages),
            metadata.first_line.eq(first_line),
        ]
        return page_read.line_read, page_write.output

    def _connect_table_reads(self, m: Module) -> None:
        """Who reads arrays, members, volumes and ports."""
        config, tables, front_end = self._config, self._tables, self._front_end
        mapper, dispatch, sequencer = self._mapper, self._dispatch, self._sequencer
        geometries = [
            front_end.reads.geometry,
            mapper.geometry_read,
            dispatch.reads.geometry,
            self._gather.geometry_read,
            sequencer.reads.geometry,
        ]
        members = [front_end.reads.member, dispatch.reads.member, sequencer.reads.member]
        volumes = [front_end.reads.volume, mapper.volume_read, self._references.volume_read]
        if config.compare_and_deallocate:
            volumes.append(front_end.volumes.read)
        if config.array_shares:
            volumes.append(self._shares.volume_read)
        if config.background:
            geometries += list(self._background.geometry_read)
            members += list(self._background.member_read)
        if config.metadata:
            geometries += list(self._metadata.geometry_read)
            members += list(self._metadata.member_read)
            volumes += [self._metadata.volume_read, self._withheld.volume_read]
        for users, ports in (
            (geometries, tables.geometry_read),
            (members, tables.member_read),
            (volumes, tables.volume_read),
        ):
            for user, port in zip(users, ports, strict=True):
                connect(m, user, port)
        connect(m, front_end.reads.port, tables.port_read)

    def _connect_references(self, m: Module) -> None:
        """Who is inside, for changes that must wait until nobody is."""
        front_end, gather = self._front_end, self._gather
        tables, references = self._tables, self._references
        connect(m, tables.quiesce, references.quiesce)
        connect(m, front_end.slots, references.slots)
        m.d.comb += [
            front_end.volumes.exists.eq(tables.volume_exists),
            references.takes.eq(gather.takes),
            references.taken.eq(gather.taken),
            references.gives.eq(gather.gives),
            references.given.eq(gather.given),
            references.exists.eq(tables.exists),
        ]

    def _connect_flushes(self, m: Module) -> None:
        """Drives that are flushed before the power goes, or as the cache is switched off."""
        front_end, tables, flusher = self._front_end, self._tables, self._flusher
        flush_all, flush_cache = self._flush_all, self._flush_cache
        drives = tables.drives
        if self._config.metadata:
            connect(m, front_end.flushes.shutdown, self._metadata.shutdown)
            connect(m, self._metadata.flush, flush_all.request)
        else:
            connect(m, front_end.flushes.shutdown, flush_all.request)
        asked = front_end.flushes.cache
        if self._config.metadata:
            # What it promises must outlive the loss of a drive that is being written down.
            flushed = flush_cache.request.flushed & ~self._metadata.withholds.any()
            m.d.comb += [
                flush_cache.request.watches.eq(asked.watches),
                flush_cache.request.flush.eq(asked.flush),
                asked.flushed.eq(flushed),
                asked.stored.eq(flush_cache.request.stored),
            ]
        else:
            connect(m, asked, flush_cache.request)
        if self._config.background:
            arrays = self._background.arrays
            has_failed = arrays.states[::2] & arrays.states[1::2]
            lost, owes = has_failed.any(), (arrays.indebted | arrays.untaken).any()
            settled = arrays.settled
        else:
            # Without the arrays' states any failed drive may be one too many.
            lost, owes, settled = (drives.used & drives.failed).any(), 0, 1
        for number, user in enumerate((flush_all, flush_cache)):
            connect(m, user.ask, flusher.ask[number])
            connect(m, flusher.told[number], user.told)
            m.d.comb += [
                user.used.eq(drives.used),
                user.failed.eq(drives.failed),
                user.lost.eq(lost),
                user.owes.eq(owes),
                user.settled.eq(settled),
            ]

    def _connect_drives(self, m: Module) -> None:
        """The drive ports, what they say of their drives, and which drives are given up."""
        config, tables, front_end = self._config, self._tables, self._front_end
        sequencer, drives = self._sequencer, self._drives
        of_arrays = config.arrays_ports
        m.d.comb += [
            tables.restarted.eq(Cat(port.restarted for port in self.drives) & of_arrays),
            tables.present.eq(Cat(port.present for port in self.drives) & of_arrays),
        ]
        # A drive that is given up waits for one that failed to store data.
        reports = [sequencer.fail, drives.fail]
        if config.metadata:
            reports.append(self._metadata.fail)
        m.submodules.reports = first = FirstOf(config.port_bits, inputs=len(reports))
        for report, place in zip(reports, first.inputs, strict=True):
            connect(m, report, place)
        connect(m, first.output, tables.fail)
        if config.backup_blocks:
            # The flash is no drive of arrays.
            of_flash = first.output.payload == config.backup_port
            dropped = of_flash | self._redo.recalls
            m.d.comb += tables.fail.valid.eq(first.output.valid & ~dropped)
            with m.If(dropped):
                m.d.comb += first.output.ready.eq(1)
            m.d.comb += self._redo.hangs.eq(first.output.valid & of_flash)
        connect(m, tables.drives, front_end.drives, self._dispatch.drives, sequencer.drives)
        failed = tables.drives.failed
        if config.metadata:
            failed = (failed & ~self._metadata.opens) | self._metadata.shuns
        if config.backup_blocks:
            away = self._redo.shuns | (self._redo.gives_up << config.backup_port)
            failed = (failed & of_arrays) | away
        m.d.comb += drives.failed.eq(failed)
        if config.sector_emulation:
            m.d.comb += front_end.drive_emulated.eq(Cat(port.emulated for port in self.drives))
        if config.intent_chunks:
            for port, identity in zip(self.drives, tables.identity, strict=True):
                m.d.comb += identity.eq(port.identity)
        known = [
            port.capacity if of_arrays >> number & 1 else Const(0)
            for number, port in enumerate(self.drives)
        ]
        capacities = Array(known)
        asked = front_end.reads.capacity
        m.d.sync += asked.data.eq(capacities[asked.address])
        for blocks, capacity in zip(known, tables.capacity, strict=True):
            m.d.comb += capacity.eq(blocks)
        for port, inner in zip(self.drives, drives.drives, strict=True):
            connect(m, flipped(port), inner)

    def _connect_background(self, m: Module) -> None:
        """Background work between the host's commands and the tables, and what it is told."""
        background, tables, front_end = self._background, self._tables, self._front_end
        dispatch, flusher, tracker = self._dispatch, self._flusher, self._tracker
        if self._config.metadata:
            metadata = self._metadata
            connect(m, front_end.table_changes, metadata.host_changes)
            connect(m, metadata.changes, background.changes)
            connect(m, background.table_changes, metadata.made_changes)
            connect(m, metadata.table_changes, tables.changes)
        else:
            connect(m, front_end.table_changes, background.changes)
            connect(m, background.table_changes, tables.changes)
        connect(m, tables.rewind, background.rewind)
        connect(m, tables.flush, flusher.ask[2])
        connect(m, flusher.told[2], tables.flushed)
        if self._config.durable_marks:
            connect(m, background.ask, flusher.ask[3])
            connect(m, flusher.told[3], background.told)
        connect(m, front_end.report, background.report)
        connect(m, front_end.slots, background.slots)
        connect(m, front_end.tellings, background.tellings)
        connect(m, dispatch.blame, background.blame)
        connect(m, dispatch.late, background.late)
        commands = Signal(range(self._config.commands + 1))
        begun = front_end.commands.command
        begins = begun.valid & begun.ready
        ends = tracker.completion.valid & tracker.completion.ready
        m.d.sync += commands.eq(commands + begins - ends)
        m.d.comb += [
            background.now.eq(self.now),
            background.host_active.eq(commands != 0),
        ]

    def _connect_health(self, m: Module) -> None:
        """How drives and arrays are: what the tables know, what background work makes of it."""
        background, tables = self._background, self._tables
        dispatch, sequencer, drives = self._dispatch, self._sequencer, self._drives
        front_end = self._front_end
        known, arrays = tables.drives, background.arrays
        connect(m, known, background.drives)
        connect(m, background.decisions, tables.decisions)
        connect(m, arrays, front_end.arrays, dispatch.arrays, sequencer.arrays)
        m.d.comb += background.present.eq(tables.present)
        for user in (self._flusher, dispatch, sequencer, drives):
            for count, counted in zip(user.restarts, tables.restarts, strict=True):
                m.d.comb += count.eq(counted)
        ends = self._tracker.completion
        m.d.comb += [
            tables.blamed.eq(dispatch.blamed | self._flush_cache.blamed),
            tables.doubts.eq(arrays.doubts),
            drives.doubted.eq(known.suspect & ~known.kept),
            dispatch.ended.valid.eq(ends.valid & ends.ready),
            dispatch.ended.payload.eq(ends.payload.slot),
        ]

    def _connect_in_sync(self, m: Module) -> None:
        """What of arrays and drives may be believed: boundaries, stale drives, migrations, eras."""
        background, tables = self._background, self._tables
        dispatch, sequencer = self._dispatch, self._sequencer
        for number, user in enumerate((sequencer, dispatch)):
            connect(m, user.reads.sync, background.sync_read[number])
            connect(m, user.reads.boundary, background.boundary_read[number])
        users = sequencer.reads.migration, dispatch.reads.migration, background.migration_read
        for user, port in zip(users, tables.migration_read, strict=True):
            connect(m, user, port)

    def _connect_walks(self, m: Module) -> None:
        """Rows that are walked: those to be mended, and those of the row walker."""
        dispatch, sequencer, mending = self._dispatch, self._sequencer, self._mending
        references, walked = self._references, sequencer.walked
        mends = dispatch.mend, *sequencer.mends
        for mend, port, array in zip(mends, mending.inputs, references.noted, strict=True):
            connect(m, mend.walk, port)
            m.d.comb += array.eq(mend.array)
        connect(m, mending.walk, self._walks.inputs[0])
        connect(m, self._background.walk, self._walks.inputs[1])
        connect(m, self._walks.output, self._gather.walk)
        connect(m, walked, self._background.walked)
        m.d.comb += [
            mending.ended.eq(walked.valid & walked.ready & (walked.payload.tag == MEND_TAG)),
            references.notes.eq(Cat(mend.noted for mend in mends)),
        ]

    def _connect_metadata(self, m: Module) -> None:
        """What superblocks are about: drives, arrays and the card; and when the host may begin."""
        metadata, tables, front_end = self._metadata, self._tables, self._front_end
        connect(m, tables.drives, metadata.drives)
        connect(m, tables.placed_read, metadata.placed_read)
        connect(m, tables.wipe, metadata.wipe)
        connect(m, metadata.wiped, tables.wiped)
        connect(m, self._background.arrays, metadata.arrays)
        connect(m, metadata.facts_read, front_end.facts_read)
        connect(m, front_end.attachments, metadata.attachments)
        made, changes = front_end.made, tables.changes
        m.d.comb += [
            made.asked.valid.eq(changes.request.valid & changes.request.ready),
            made.asked.payload.eq(changes.request.payload),
            made.answered.valid.eq(changes.response.valid & changes.response.ready),
            made.answered.payload.eq(changes.response.payload),
            front_end.appeared.eq(metadata.appeared),
            front_end.drive_foreign.eq(metadata.foreign),
            front_end.drive_spare.eq(self._background.decisions.reserved),
            *(
                shown.eq(standing)
                for shown, standing in zip(
                    front_end.drive_standing, metadata.standings, strict=True
                )
            ),
            metadata.present.eq(tables.present),
            metadata.card.identity.eq(self.identity),
            metadata.card.nonce.eq(self.nonce),
            metadata.stored.eq(self._flush_all.complete),
            metadata.parting.eq(tables.parting),
            metadata.spares.eq(self._background.decisions.reserved),
            metadata.tries_spare.eq(self._background.tries_spare),
            self._background.clean.eq(metadata.clean),
            metadata.volume_exists.eq(tables.volume_exists),
            metadata.wanted.eq(front_end.wanted),
            front_end.unready.eq(~metadata.ready),
            metadata.now.eq(self.now),
            metadata.whole.eq(self._background.whole),
        ]
        if self._config.durable_marks:
            connect(m, metadata.marks, self._background.marks)
            connect(m, metadata.load, self._background.load)
            connect(m, metadata.follow, self._background.follow)
            connect(m, metadata.lets, self._sequencer.lets)
            connect(m, self._background.filled, metadata.filled)
            m.d.comb += metadata.idle.eq(self._background.idle)
        for port, capacity in zip(self.drives, metadata.capacity, strict=True):
            m.d.comb += capacity.eq(port.capacity)

    def _connect_redo(self, m: Module) -> None:
        """The backup unit: what is on its way to drives, and what is known of arrays."""
        redo, metadata, sequencer = self._redo, self._metadata, self._sequencer
        front_end, flushed = self._front_end, self._flush_cache
        flash = self.drives[self._config.backup_port]
        connect(m, flipped(self.backup), redo.pins)
        connect(m, sequencer.recalled, redo.recalled)
        connect(m, sequencer.exposes, redo.exposes)
        connect(m, sequencer.unflushed, redo.unflushed)
        connect(m, self._background.stored, redo.proven)
        connect(m, redo.kept_read, metadata.redo_kept_read)
        connect(m, redo.home_read, metadata.home_read)
        asked = front_end.flushes.cache
        m.d.comb += [
            redo.present.eq(flash.present),
            redo.capacity.eq(flash.capacity),
            redo.restarted.eq(flash.restarted),
            redo.now.eq(self.now),
            redo.surveyed.eq(metadata.surveyed),
            redo.known.eq(metadata.known),
            redo.used.eq(self._tables.drives.used),
            redo.wanted.eq(front_end.wanted),
            redo.sound.eq(metadata.sound),
            redo.steady.eq(metadata.steady),
            redo.clean.eq(metadata.says_clean),
            redo.flushes.eq(asked.flush),
            redo.stores.eq(asked.flushed & flushed.complete),
            sequencer.recalls.eq(redo.recalls),
            sequencer.most_unwritten.eq(redo.most_unwritten),
            metadata.freezes.eq(redo.recalls),
            metadata.redo_reads.eq(redo.reads),
            metadata.replayed.eq(redo.done),
            metadata.covered.eq(redo.covered),
            front_end.backup_failed.eq(redo.failed),
        ]

    def _connect_intent(self, m: Module) -> None:
        """Rows that are written, and flushes, for the write-intent bitmap."""
        writes, sequencer, gather = self._background.writes, self._sequencer, self._gather
        connect(m, sequencer.begun, writes.begun)
        # A row slot is given back to both at once.
        retired = sequencer.retired
        users = gather.retired, writes.retired
        for user, other in (users, reversed(users)):
            m.d.comb += [
                user.payload.eq(retired.payload),
                user.valid.eq(retired.valid & other.ready),
            ]
        m.d.comb += retired.ready.eq(users[0].ready & users[1].ready)
        # A drive that is flushed, or that found its row written, is heard of much later.
        expects, ends = self._dispatch.expected, self._tracker.completion
        m.d.sync += [
            writes.flushes.flush.eq(expects.valid & expects.ready),
            writes.flushes.flushing.slot.eq(expects.payload.slot),
            writes.flushes.flushing.array.eq(expects.payload.array),
            writes.flushes.completed.eq(ends.valid & ends.ready),
            writes.flushes.completion.eq(ends.payload),
        ]
