"""The NVMe controller as the host sees it: only instances and connections."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.flow.array_state import ArrayStatus
from hdl.flow.attachments import Attachments
from hdl.flow.drive_standing import drive_standing
from hdl.flow.drive_states import DriveStates
from hdl.flow.flush_request import HostFlushes
from hdl.flow.host_command import HostCommands, completion
from hdl.flow.host_data import BlockMoves, fetched, transfer
from hdl.flow.host_memory import (
    HostAccess,
    Kind,
    inbox_dwords,
    read_request,
    sqe_slots,
    write_request,
)
from hdl.flow.line import LineAccess
from hdl.flow.manage import Changes, MadeChange
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.post import post
from hdl.flow.reference import SlotEvents, Tellings
from hdl.flow.register_bus import RegisterBus
from hdl.flow.report import ReportAccess
from hdl.flow.table_read import TableReads, VolumeAccess
from hdl.flow.volume_facts import volume_facts_read
from hdl.kit.cut import Skid
from hdl.kit.merge import Merge, split
from hdl.kit.queue import Queue
from hdl.memory.settle import Settle
from hdl.nvme.admin.admin import Admin
from hdl.nvme.admin.names import Card, Names
from hdl.nvme.codes import CRITICAL_KELVIN, SQE_DWORDS, WARNING_KELVIN
from hdl.nvme.commands.decode import AdminEntry, Decode, EntryMemory
from hdl.nvme.commands.delivery import Delivery
from hdl.nvme.commands.examine import Examine
from hdl.nvme.commands.formats import Formats
from hdl.nvme.commands.lifetimes import Lifetimes
from hdl.nvme.commands.slots import SlotTable
from hdl.nvme.pages.health import Health
from hdl.nvme.pages.identify import Identity
from hdl.nvme.pages.pages import PageGenerator
from hdl.nvme.pages.sender import PageSender
from hdl.nvme.prp.prp import Prp
from hdl.nvme.queues.fetch_plan import ADMIN_FETCH
from hdl.nvme.queues.queues import QueueEngine
from hdl.nvme.records import again, finish, rejected, unsent
from hdl.nvme.registers.coalesce import Coalesce
from hdl.nvme.registers.function_reset import FunctionReset
from hdl.nvme.registers.interrupts import Interrupts
from hdl.nvme.registers.registers import Registers


class NvmeFrontEnd(wiring.Component):
    """Registers, queues, PRPs, admin commands and interrupts of an NVMe 1.4 controller.

    Parameters
    ----------
    config
        Sizes.
    identity
        What all cards of a kind say of themselves.

    Ports
    -----
    register
        The host's register accesses.
    status
        What the PCIe hard block reports.
    flushes
        Flushes of all drives, before the power goes or as the write cache is switched off.
    host
        Access to host memory. Blocks go into and out of lines. Queue entries, PRP lists and
        parameters go into the inbox. CSTS.RDY and CSTS.SHST wait for writes that are ``posted``.
    reset_done
        A function level reset is done (`FunctionReset`).
    commands
        I/O commands, and how they ended.
    blocks
        Moves of blocks. What has been fetched must be taken whatever commands do.
    table_changes
        Changes to the array and volume tables.
    reads
        The tables, for the pages that list them.
    drives
        What the tables know of the drives.
    arrays
        The states of all arrays.
    report
        What the pages say of background work. Not used without `Config.background`.
    slots
        I/O commands that get and leave their command slots.
    tellings
        How the host is told that volumes have lost data. Not used without `Config.background`.
    volumes
        What is known of volumes.
    drive_emulated
        Bit a drive port: 512-byte sectors of the drive itself are emulated. Not used without
        `Config.sector_emulation`.
    temperature
        Composite temperature in kelvin. 0 stands for no sensor, and then
        `Config.temperature_kelvin` is reported.
    wanted
        The host wants the controller to work.
    unready
        The arrays are not there yet. CSTS.RDY waits for them.
    made
        Changes to the tables, also those that the host does not make. This and the next four are
        only used with `Config.metadata`.
    appeared
        Bit a volume, a pulse: it was brought up.
    attachments
        Volumes that are attached, to be stored.
    facts_read
        The facts of volumes, to be stored.
    drive_foreign, drive_spare
        Bit a drive port: its drive says that it belongs to an array, which is not there; it is a
        hot spare.
    drive_standing
        Of the superblock at each drive port.
    backup_failed
        The backup unit could not save what it should.
    card
        What the names of card and namespaces are made of (`hdl.nvme.admin.names.Names`).
    lines
        Lines that admin pages are built in, and the one that `Examine` keeps. Only `Examine` reads
        lines. Without `Config.compare_and_deallocate` nobody does.
    now
        Time in clock cycles.
    deadline
        Time in clock cycles at which interrupts that are held back leave, all ones for never.
    busy
        Something moves without a host, a drive or a line being waited for.

    Rate: the slowest part takes about 25 cycles a command (`QueueEngine`). A command reaches
    ``commands`` in about 20 cycles after its queue entry has arrived. A block takes 5 cycles, or 7
    when it spans two host pages.
    """

    def __init__(self, *, config: Config, identity: Identity | None = None):
        self._config = config
        super().__init__(
            {
                "register": In(RegisterBus()),
                "status": Out(PcieStatus()),
                "flushes": Out(HostFlushes()),
                "host": Out(HostAccess(config)),
                "reset_done": Out(1),
                "commands": Out(HostCommands(config)),
                "blocks": In(BlockMoves(config)),
                "table_changes": Out(Changes(config)),
                "reads": Out(TableReads(config)),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "report": Out(ReportAccess()),
                "slots": Out(SlotEvents(config)),
                "tellings": Out(Tellings(config)),
                "drive_emulated": In(config.ports),
                "volumes": Out(VolumeAccess(config)),
                "wanted": Out(1),
                "unready": In(1),
                "made": In(MadeChange(config)),
                "appeared": In(config.volumes),
                "attachments": Out(Attachments(config)),
                "facts_read": In(volume_facts_read(config)),
                "drive_foreign": In(config.ports),
                "drive_spare": In(config.ports),
                "drive_standing": In(drive_standing()).array(config.ports),
                "backup_failed": In(1),
                "card": In(Card()),
                "temperature": In(16),
                "lines": Out(LineAccess(config)),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "busy": Out(1),
            }
        )

        # Registers and queues, I/O commands, admin commands.
        self._registers = Registers(config=config)
        self._function_reset = FunctionReset()
        self._interrupts = Interrupts(config=config)
        self._coalesce = Coalesce(config=config)
        self._queues = QueueEngine(config=config)
        self._entries = EntryMemory(config=config)
        self._decode = Decode(config=config)
        self._lifetimes = Lifetimes(config=config)
        self._slots = SlotTable(config=config)
        self._prp = Prp(config=config)
        self._delivery = Delivery(config=config)
        self._admin_entry = AdminEntry(config=config)
        self._admin = Admin(config=config)
        self._sender = PageSender(config=config)
        self._pages = PageGenerator(config=config, identity=identity or Identity())
        self._health = Health(config=config)
        self._names = Names(config=config)
        if config.sector_emulation:
            self._formats = Formats(config=config)

        # Where several of these meet.
        examines = config.compare_and_deallocate
        self._reads = Merge(read_request(config), inputs=3 + examines)
        self._writes = Merge(write_request(config), inputs=2)
        self._fills = Merge(fetched(config), inputs=2)
        self._posts = Merge(post(), inputs=2)
        self._ends = Merge(finish(config), inputs=4)
        self._rejects = Merge(rejected(config), inputs=2 + examines)
        self._finished = Merge(completion(config), inputs=1)
        self._arrived = Skid(fetched(config))
        self._settle = Settle(fetched(config))
        # Each slot is in it once at most: an end, or an Abort, waits for no command to go on.
        self._next_parts = Queue(again(config), config.commands)

        # A read ends. A change to the tables is taken, or is answered.
        self._read_ends = self.host.read_done.valid & self.host.read_done.ready
        self._table_asked = self.table_changes.request.valid & self.table_changes.request.ready
        self._table_answers = self.table_changes.response.valid & self.table_changes.response.ready
        self._moved = Signal()  # something moved in the last cycle

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        blocks = self._add_blocks(m)
        self._connect_registers(m)
        self._connect_resets(m)
        self._connect_interrupts(m)
        self._connect_host_reads(m)
        self._connect_inbox(m)
        self._connect_commands(m)
        self._connect_lifetimes(m)
        self._connect_slots(m)
        self._connect_blocks_in(m)
        self._connect_blocks_out(m)
        if config.compare_and_deallocate:
            blocks += self._connect_examine(m)
        else:
            self._connect_around_examine(m)
        self._connect_ends(m)
        self._connect_posts(m)
        self._connect_admin(m)
        self._connect_caches(m)
        self._connect_pages(m)
        self._connect_names(m)
        if config.sector_emulation:
            self._connect_formats(m)
        if config.metadata:
            self._connect_facts(m)
        self._connect_logs(m)
        self._connect_events(m)
        self._connect_conditions(m)
        self._connect_busy(m, blocks)
        return m

    def _add_blocks(self, m: Module) -> list:
        """Returns those that say whether something moves."""
        names = ["registers", "interrupts", "coalesce", "queues", "decode", "slots", "prp"]
        names += ["delivery", "admin", "sender", "pages", "health", "reads", "writes", "fills"]
        names += ["posts", "ends", "rejects", "finished", "arrived", "admin_entry", "settle"]
        names += ["lifetimes"]
        blocks = []
        for name in names:
            block = getattr(self, f"_{name}")
            m.submodules[name] = block
            blocks.append(block)
        # Of these two the busy signal counts elsewhere, the others have none.
        m.submodules.function_reset = self._function_reset
        m.submodules.next_parts = self._next_parts
        m.submodules.entries = self._entries
        m.submodules.names = self._names
        return blocks

    def _connect_registers(self, m: Module) -> None:
        """Registers, doorbells, and what the queues are to do."""
        registers, queues = self._registers, self._queues
        connect(m, flipped(self.register), registers.register)
        connect(m, registers.admin, queues.admin)
        connect(m, registers.doorbell, queues.doorbell)
        connect(m, registers.vectors, self._interrupts.vectors)
        connect(m, registers.shutdown_flush, flipped(self.flushes).shutdown)
        settled = Signal()
        m.d.comb += [
            settled.eq(
                ~self.host.posted
                & ~self.host.post.valid
                & ~queues.post.valid
                & ~self._interrupts.leaving
            ),
            queues.enable.eq(registers.enable),
            queues.fetch_enable.eq(self.status.bus_master & ~registers.shutting),
            queues.shutting.eq(registers.shutting),
            queues.settled.eq(settled),
            registers.settled.eq(settled),
            registers.unready.eq(self.unready),
            self.wanted.eq(registers.wanted),
            registers.running.eq(queues.running),
            registers.drained.eq(queues.drained),
            registers.fatal.eq(
                registers.enable & (self._decode.dropped.valid | self._admin_entry.dropped.valid)
            ),
        ]

    def _connect_resets(self, m: Module) -> None:
        """Resets of the function. A link reset is to the host's side what a function level reset
        is."""
        registers, function_reset = self._registers, self._function_reset
        resets = Signal()
        m.d.comb += [
            resets.eq(self.status.function_reset | self.status.link_reset),
            registers.reset.eq(resets),
            registers.draining.eq(function_reset.draining),
            registers.forgotten.eq(function_reset.forgotten),
            self._interrupts.reset.eq(resets),
            function_reset.request.eq(resets),
            function_reset.idle.eq(self.host.idle & ~self._moved),
            function_reset.bus_master.eq(self.status.bus_master),
            function_reset.enable.eq(registers.enable),
            function_reset.running.eq(self._queues.running),
            self.host.discard.eq(function_reset.draining),
            self.reset_done.eq(function_reset.done & self.status.function_reset),
        ]

    def _connect_interrupts(self, m: Module) -> None:
        """Vectors: from the queues, through coalescing, to messages."""
        registers, queues, admin = self._registers, self._queues, self._admin
        interrupts, coalesce = self._interrupts, self._coalesce
        clear = ~queues.running | ~registers.enable
        connect(m, queues.raised, coalesce.raised)
        m.d.comb += [
            coalesce.threshold.eq(admin.settings.threshold),
            coalesce.delay.eq(admin.settings.delay),
            coalesce.uncoalesced.eq(admin.settings.uncoalesced),
            coalesce.hurry.eq(registers.shutting),
            coalesce.clear.eq(clear),
            coalesce.now.eq(self.now),
            self.deadline.eq(coalesce.deadline),
            interrupts.raised.eq(coalesce.passed),
            interrupts.enable.eq(self.status.msix_enable),
            interrupts.mask.eq(self.status.msix_mask),
            interrupts.clear.eq(clear),
        ]

    def _connect_host_reads(self, m: Module) -> None:
        """Reads from the host, and who learns of their ends: queue entries, lists, parameters,
        blocks."""
        queues, admin_entry, admin = self._queues, self._admin_entry, self._admin
        prp, arrived, done = self._prp, self._arrived, self.host.read_done.payload
        connect(m, queues.read_request, self._reads.inputs[0])
        connect(m, prp.read_request, self._reads.inputs[1])
        connect(m, admin.parameter_read.request, self._reads.inputs[2])
        connect(m, self._reads.output, flipped(self.host.read_request))
        m.d.comb += [
            self.host.read_done.ready.eq((done.kind != Kind.BLOCK) | arrived.input.ready),
            arrived.input.valid.eq(self.host.read_done.valid & (done.kind == Kind.BLOCK)),
            arrived.input.payload.line.eq(done.index),
            arrived.input.payload.error.eq(done.error),
            queues.done.valid.eq(self._read_ends & (done.kind == Kind.ENTRIES)),
            queues.done.payload.index.eq(done.index),
            queues.done.payload.error.eq(done.error),
            admin_entry.done.valid.eq(queues.done.valid & (done.index == ADMIN_FETCH)),
            admin_entry.done.payload.eq(done.error),
            admin.parameter_read.done.eq(self._read_ends & (done.kind == Kind.PARAMETER)),
            admin.parameter_read.error.eq(done.error),
            prp.list_done.valid.eq(self._read_ends & (done.kind == Kind.LIST)),
            prp.list_done.payload.slot.eq(done.index),
            prp.list_done.payload.error.eq(done.error),
        ]

    def _connect_inbox(self, m: Module) -> None:
        """Beats of the inbox. It holds PRP lists, then entries of I/O queues, then the entry of the
        admin queue, then a parameter of an admin command."""
        config, inbox = self._config, self.host.inbox_write
        entries, admin_entry, prp = self._entries, self._admin_entry, self._prp
        beat_shift = (config.beat_dwords - 1).bit_length()
        entry_beats = sqe_slots(config) * SQE_DWORDS >> beat_shift
        parameter_beat = inbox_dwords(config) >> beat_shift
        first_admin_beat = parameter_beat - (SQE_DWORDS >> beat_shift)
        first_entry_beat = first_admin_beat - entry_beats
        is_entry = Signal()
        is_admin = Signal()
        m.d.comb += [
            inbox.ready.eq(1),
            is_entry.eq(inbox.payload.address >= first_entry_beat),
            is_admin.eq(inbox.payload.address >= first_admin_beat),
            admin_entry.inbox.beat.eq(inbox.payload.address - first_admin_beat),
            entries.inbox.beat.eq(inbox.payload.address - first_entry_beat),
            prp.inbox.beat.eq(inbox.payload.address),
            *(part.inbox.data.eq(inbox.payload.data) for part in (admin_entry, entries, prp)),
        ]
        with m.If(inbox.valid):
            with m.If(inbox.payload.address == parameter_beat):
                m.d.sync += self._admin.parameter_read.word.eq(inbox.payload.data)
            with m.Elif(is_admin):
                m.d.comb += admin_entry.inbox.mask.eq(inbox.payload.mask)
            with m.Elif(is_entry):
                m.d.comb += entries.inbox.mask.eq(inbox.payload.mask)
            with m.Else():
                m.d.comb += prp.inbox.mask.eq(inbox.payload.mask)

    def _connect_commands(self, m: Module) -> None:
        """I/O commands down: entries, slots, PRPs, data path."""
        decode, entries, slots, prp = self._decode, self._entries, self._slots, self._prp
        connect(m, self._queues.entry, decode.entry)
        connect(m, slots.allocate, decode.allocate)
        connect(m, decode.admit, prp.admit)
        connect(m, prp.command, flipped(self.commands).command)
        connect(m, decode.store, slots.store)
        m.d.comb += [
            entries.read_beat.eq(decode.beat),
            decode.beat_data.eq(entries.read_data),
            decode.write_through.eq(self._admin.settings.write_through),
            decode.detached.eq(self._admin.namespaces.detached),
            decode.stop.eq(~self._registers.enable),
            slots.stop.eq(~self._registers.enable),
        ]

    def _connect_lifetimes(self, m: Module) -> None:
        """Which volume a command was meant for, and when it comes and goes."""
        decode, lifetimes, slots = self._decode, self._lifetimes, self._slots
        begun, stored = self.slots.begun, decode.store
        connect(m, decode.lifetime, lifetimes.read)
        connect(m, slots.cached, flipped(self.slots.cached))
        connect(m, slots.freed, flipped(self.slots.ended))
        m.d.comb += [
            lifetimes.exists.eq(self.volumes.exists),
            lifetimes.told.eq(self.tellings.told),
            self._queues.age.eq(lifetimes.age),
            # A namespace that is none has no volume. It may count for any.
            begun.valid.eq(stored.valid),
            begun.payload.slot.eq(stored.payload.slot),
            begun.payload.volume.eq(stored.payload.command.nsid - 1),
            begun.payload.late.eq(decode.lifetime.late),
            slots.tells.eq(self.tellings.tells),
        ]

    def _connect_slots(self, m: Module) -> None:
        """Commands that go on with their next part, and commands that are to be aborted."""
        admin, slots, prp = self._admin, self._slots, self._prp
        connect(m, slots.again, self._next_parts.input)
        connect(m, self._next_parts.output, prp.again)
        connect(m, admin.abort_access, slots.abort_access)
        connect(m, slots.cancel, prp.cancel)
        connect(m, prp.cancelled, slots.cancelled)

    def _connect_blocks_in(self, m: Module) -> None:
        """Blocks into lines: from the host, or zeros."""
        zeroed = self._pages.zeroed
        from_host, of_zeros = self._fills.inputs
        connect(m, self._prp.zero, self._pages.zero)
        connect(m, self._arrived.output, from_host)
        connect(m, self._fills.output, self._settle.input)
        m.d.comb += [
            of_zeros.valid.eq(zeroed.valid),
            of_zeros.payload.line.eq(zeroed.payload),
            zeroed.ready.eq(of_zeros.ready),
        ]

    def _connect_blocks_out(self, m: Module) -> None:
        """Blocks and admin pages out of lines, to the host."""
        prp, delivery, sender = self._prp, self._delivery, self._sender
        connect(m, flipped(self.blocks).deliver, prp.deliver)
        connect(m, prp.write_request, self._writes.inputs[0])
        connect(m, sender.write_request, self._writes.inputs[1])
        connect(m, self._writes.output, flipped(self.host.write_request))
        connect(m, flipped(self.host.write_done), delivery.write_done)
        connect(m, delivery.delivered, flipped(self.blocks).delivered)
        connect(m, prp.delivers, delivery.begin)
        m.d.comb += [
            delivery.page_line.eq(sender.line),
            delivery.has_page.eq(sender.owns_line),
            sender.sent.eq(delivery.page_sent),
        ]

    def _connect_examine(self, m: Module) -> list:
        """Blocks and ranges that `Examine` looks at. Returns the blocks that it needs."""
        config, settle, sender, prp = self._config, self._settle, self._sender, self._prp
        m.submodules.examine = examine = Examine(config=config)
        m.submodules.unsents = unsents = Merge(unsent(config), inputs=2)
        m.submodules.fetches = fetches = Merge(transfer(config), inputs=2)
        connect(m, prp.compare, examine.compare)
        connect(m, self._decode.ranges, examine.ranges)
        connect(m, flipped(self.blocks).fetch, fetches.inputs[0])
        connect(m, examine.fetch, fetches.inputs[1])
        connect(m, fetches.output, prp.fetch)
        connect(m, examine.read_request, self._reads.inputs[3])
        connect(m, examine.ended, self._rejects.inputs[2])
        connect(m, prp.discard, unsents.inputs[0])
        connect(m, examine.compared, unsents.inputs[1])
        connect(m, unsents.output, self._delivery.discarded)
        connect(m, examine.line_read, flipped(self.lines).read)
        connect(m, examine.volume_read, flipped(self.volumes).read)
        own = examine.waits & (settle.output.payload.line == examine.line)
        split(m, settle.output, [(own, examine.fetched), (~own, flipped(self.blocks).fetched)])
        # The first line that is offered stays with `examine`.
        offered = self.lines.allocate
        m.d.comb += [
            examine.allocate.payload.eq(offered.payload),
            sender.allocate.payload.eq(offered.payload),
            examine.allocate.valid.eq(offered.valid),
            sender.allocate.valid.eq(offered.valid & ~examine.allocate.ready),
            offered.ready.eq(examine.allocate.ready | sender.allocate.ready),
        ]
        return [examine, unsents, fetches]

    def _connect_around_examine(self, m: Module) -> None:
        """The same ways without `Examine`."""
        connect(m, flipped(self.blocks).fetch, self._prp.fetch)
        connect(m, self._settle.output, flipped(self.blocks).fetched)
        connect(m, self._prp.discard, self._delivery.discarded)
        connect(m, flipped(self.lines).allocate, self._sender.allocate)

    def _connect_ends(self, m: Module) -> None:
        """Ends of commands, up to the queues."""
        decode, prp, slots, admin = self._decode, self._prp, self._slots, self._admin
        connect(m, flipped(self.commands).completion, self._finished.inputs[0])
        connect(m, self._finished.output, slots.completion)
        connect(m, decode.rejected, self._rejects.inputs[0])
        connect(m, prp.rejected, self._rejects.inputs[1])
        connect(m, self._rejects.output, slots.rejected)
        connect(m, slots.finish, self._ends.inputs[0])
        connect(m, admin.finish, self._ends.inputs[1])
        connect(m, decode.dropped, self._ends.inputs[2])
        connect(m, self._admin_entry.dropped, self._ends.inputs[3])
        connect(m, self._ends.output, self._queues.finish)
        connect(m, admin.reports, self._queues.reports)

    def _connect_posts(self, m: Module) -> None:
        """Completion queue entries and interrupts to the host, and who is told of the entries."""
        queues, interrupts = self._queues, self._interrupts
        connect(m, queues.post, self._posts.inputs[0])
        connect(m, interrupts.post, self._posts.inputs[1])
        connect(m, interrupts.messages, flipped(self.host.messages))
        connect(m, self._posts.output, flipped(self.host.post))
        connect(m, queues.hearing, flipped(self.tellings.hearing))

    def _connect_admin(self, m: Module) -> None:
        """Admin commands: queues and tables that they change."""
        admin, queues, registers = self._admin, self._queues, self._registers
        connect(m, self._admin_entry.entry, admin.entry)
        connect(m, admin.queue_changes, queues.changes)
        connect(m, admin.table_changes, flipped(self.table_changes))
        m.d.comb += [
            queues.admin_taken.eq(self._admin_entry.taken),
            queues.burst.eq(admin.settings.burst),
            admin.entry_sizes_good.eq(registers.entry_sizes_good),
            admin.io_queues.eq(queues.io_queues),
            admin.clear.eq(~queues.running),
            admin.stop.eq(~registers.enable | registers.shutting),
        ]

    def _connect_caches(self, m: Module) -> None:
        """What is stored when the volatile write cache is switched off."""
        admin = self._admin
        connect(m, admin.cache_flush, flipped(self.flushes).cache)
        m.d.comb += admin.caching.eq(self._slots.caching)

    def _connect_pages(self, m: Module) -> None:
        """Pages for the host: who asks for them, and the tables that they list."""
        admin, sender, pages = self._admin, self._sender, self._pages
        connect(m, admin.pages, sender.pages)
        connect(m, sender.build, pages.request)
        connect(m, pages.response, sender.built)
        connect(m, sender.free, flipped(self.lines).free)
        connect(m, pages.line_write, flipped(self.lines).write)
        connect(m, pages.reads, flipped(self.reads))
        connect(m, flipped(self.drives), pages.drives)
        connect(m, flipped(self.arrays), pages.arrays)
        connect(m, pages.report, flipped(self.report))
        connect(m, admin.namespaces, pages.namespaces)
        connect(m, admin.probe, pages.probe)
        connect(m, admin.attachments, flipped(self.attachments))
        m.d.comb += [
            admin.sources.news.eq(self.arrays.news),
            admin.appeared.eq(self.appeared),
            admin.exists.eq(self.volumes.exists),
            pages.drive_foreign.eq(self.drive_foreign),
            pages.drive_spare.eq(self.drive_spare),
            *(
                inner.eq(outer)
                for inner, outer in zip(pages.drive_standing, self.drive_standing, strict=True)
            ),
        ]

    def _connect_names(self, m: Module) -> None:
        """What names the card and its volumes."""
        names, pages = self._names, self._pages
        connect(m, pages.names, names.read)
        connect(m, flipped(self.card), names.card)
        self._connect_changes(m, names)

    def _connect_changes(self, m: Module, part: Names | Formats) -> None:
        """Tells ``part`` of the changes to the tables and of their answers."""
        made = part.made
        if self._config.metadata:
            connect(m, flipped(self.made), made)
            return
        m.d.comb += [
            made.asked.valid.eq(self._table_asked),
            made.asked.payload.eq(self.table_changes.request.payload),
            made.answered.valid.eq(self._table_answers),
            made.answered.payload.eq(self.table_changes.response.payload),
        ]

    def _connect_facts(self, m: Module) -> None:
        """What is stored of volumes."""
        names, facts, asked = self._names.stored_read, self.facts_read.data, self.facts_read.address
        volume = Signal.like(asked)
        m.d.sync += volume.eq(asked)
        m.d.comb += [names.address.eq(asked), facts.name.eq(names.data)]
        if self._config.sector_emulation:
            formats = self._formats.formats
            m.d.comb += [
                facts.sectors.eq(formats.sectors.bit_select(volume, 1)),
                facts.coarse.eq(formats.coarse.bit_select(volume, 1)),
            ]

    def _connect_formats(self, m: Module) -> None:
        """Which volumes have 512-byte sectors."""
        m.submodules.formats = formats = self._formats
        self._connect_changes(m, formats)
        m.d.comb += [
            formats.emulated.eq(self.drive_emulated),
            self._decode.sectors.eq(formats.formats.sectors),
            self._pages.formats.eq(formats.formats),
            self._pages.drive_emulated.eq(self.drive_emulated),
        ]

    def _connect_logs(self, m: Module) -> None:
        """What goes into the SMART and error logs, and how pages read them."""
        health, pages = self._health, self._pages
        connect(m, self._slots.note, health.io)
        connect(m, self._admin.note, health.admin)
        connect(m, pages.log, health.log)
        m.d.comb += health.now.eq(self.now)

    def _connect_events(self, m: Module) -> None:
        """Events of doorbells, and reports of all. An error event is told once its entry is in the
        log that it names."""
        queues, health, admin = self._queues, self._health, self._admin
        misuse = queues.misuse.valid | self._registers.misuse
        recording = Signal()
        by_value = Signal()
        with m.If(health.recorded):
            m.d.sync += recording.eq(0)
        with m.If(misuse):
            m.d.sync += recording.eq(1)
            with m.If(~recording | health.recorded):
                m.d.sync += by_value.eq(queues.misuse.valid & queues.misuse.payload)
        m.d.comb += [
            health.misuse.eq(misuse),
            admin.sources.misuse.valid.eq(health.recorded),
            admin.sources.misuse.payload.eq(by_value),
        ]

    def _connect_conditions(self, m: Module) -> None:
        """Temperature and drives that have failed, for warnings, events and the SMART log."""
        admin, pages, drives = self._admin, self._pages, self.drives
        kelvin = Signal(16)
        warm = Signal()
        hot = Signal()
        too_warm = Signal()
        degraded = Signal()
        default = self._config.temperature_kelvin
        m.d.sync += [
            kelvin.eq(Mux(self.temperature == 0, default, self.temperature)),
            warm.eq((kelvin >= WARNING_KELVIN) & (kelvin < CRITICAL_KELVIN)),
            hot.eq(kelvin >= CRITICAL_KELVIN),
            too_warm.eq((kelvin >= admin.settings.over) | (kelvin <= admin.settings.under)),
            degraded.eq((drives.used & (drives.failed | drives.stale)).any()),
        ]
        warning = Cat(Const(0, 1), too_warm, degraded, Const(0, 1), self.backup_failed)
        m.d.comb += [
            self._health.conditions.eq(Cat(Const(1, 1), self._slots.active, warm, hot)),
            pages.health.temperature.eq(kelvin),
            pages.health.warning.eq(warning),
            admin.sources.warning.eq(warning),
        ]

    def _connect_busy(self, m: Module, blocks: list) -> None:
        """Whether something moves in one of ``blocks`` or at a port, or did a cycle before."""
        moves = Signal()
        m.d.comb += [
            moves.eq(
                Cat(block.busy for block in blocks).any()
                | self._read_ends
                | self.host.inbox_write.valid
                | self._next_parts.busy
            ),
            self.busy.eq(moves | self._moved | self._function_reset.busy),
        ]
        m.d.sync += self._moved.eq(moves)
