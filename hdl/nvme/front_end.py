"""The NVMe controller as the host sees it: only instances and connections."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.flow.host_command import command, completion
from hdl.flow.host_data import delivered, fetched, transfer
from hdl.flow.host_memory import (
    Kind,
    inbox_beat,
    inbox_dwords,
    read_done,
    read_request,
    sqe_slots,
    write_request,
)
from hdl.flow.line import ReadPort, line_stream, write_port
from hdl.flow.manage import manage_request, manage_response
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.post import Messages, post
from hdl.flow.reference import answer, command_begin, telling
from hdl.flow.register_bus import RegisterBus
from hdl.flow.report import report_read
from hdl.flow.table_read import geometry_read, member_read, port_read, volume_read
from hdl.kit.cut import Skid
from hdl.kit.merge import Merge, split
from hdl.kit.queue import Queue
from hdl.memory.settle import Settle
from hdl.nvme.admin.admin import Admin
from hdl.nvme.admin.names import IDENTITY_BITS, NONCE_BITS, Names
from hdl.nvme.codes import CRITICAL_KELVIN, SQE_DWORDS, WARNING_KELVIN
from hdl.nvme.commands.decode import AdminEntry, Decode, EntryMemory
from hdl.nvme.commands.delivery import Delivery
from hdl.nvme.commands.examine import Examine
from hdl.nvme.commands.formats import Formats
from hdl.nvme.commands.lifetimes import Lifetimes
from hdl.nvme.commands.slots import SlotTable
from hdl.nvme.pages.health import Health
from hdl.nvme.pages.identify import Identity
from hdl.nvme.pages.pages import PageGenerator, capacity_read
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
    register, status
        The host's register accesses, and what the PCIe hard block reports.
    posted
        Writes to host memory have been taken and have not left (completions could pass them).
        CSTS.RDY and CSTS.SHST wait for them.
    flush, flushed
        A level: a shutdown is under way, every command has ended or been dropped; it stays until
        answered. Level or pulse: since it rose, every drive of every array has been flushed, or has
        failed to be.
    flush_cache, cache_flushed, cache_stored
        The same as the host switches the volatile write cache off, and all that began before has
        ended; and whether every drive that is not failed has been flushed well.
    discard, host_idle, reset_done
        Host accesses that have not left are to be dropped; there is none and no tag in use; a
        function level reset is done (`FunctionReset`).
    read_request, read_done, inbox_write
        Reads from host memory: blocks into lines, queue entries and PRP lists into the inbox.
    write_request, write_done, post
        Writes to host memory: blocks out of lines; completion queue entries and interrupts.
    messages
        What becomes of interrupts that have been handed to ``post``.
    command, completion
        I/O commands with their PRPs at hand, and how they ended. A command ends only after each of
        its transfers has been answered.
    fetch, fetched, deliver, delivered
        Blocks between host memory and lines. ``fetched`` is told when all of the block can be read
        in its line (`Settle`), and must be taken whatever ``command`` does.
    manage_request, manage_response
        Changes to the array and volume tables.
    geometry_read, member_read, volume_read, port_read, drive_capacity_read
        Tables, for the pages that list them.
    volume_exists
        Bit a volume: it is there; a command may find it only if it was when it was submitted.
    drive_present, drive_failed, drive_used, drive_emulated
        A bit per drive port; ``drive_used``: it belongs to an array; ``drive_emulated``: its own
        512-byte sectors are emulated (not there without `Config.sector_emulation`).
    drive_stale, array_states, array_unsynced, array_assumed, array_news, report_read, report_shows
        Not there without `Config.background`. A bit per drive port: it is being rebuilt; a state
        for each array, whether it is not in sync, or assumed to be, and a pulse when a state has
        changed; what the pages say of background work, and that one of findings is being made.
    told, tells, answers, answer
        Not there without `Config.background`. Those of `hdl.nvme.commands.lifetimes.Lifetimes`,
        `hdl.nvme.commands.slots.SlotTable` (for ``ended``) and
        `hdl.nvme.queues.queues.QueueEngine`.
    begins, begun, ends, ended
        I/O commands that come and go, for `hdl.array.references.References`: pulses when one gets a
        slot, before its namespace matters, and when its slot is free again.
    temperature
        Composite temperature in kelvin; 0: no sensor, `Config.temperature_kelvin` is reported.
    identity, nonce
        What makes the names of this card and its namespaces (`hdl.nvme.admin.names.Names`).
    line_write, allocate, free
        The line that an admin page is built in.
    line_read, size_read
        Lines and volumes that `Examine` looks at; not there without
        `Config.compare_and_deallocate`.
    now, deadline
        Time in clock cycles, and when interrupts that are held back leave (all ones: never).

    Rate: the slowest part takes about 25 cycles a command (`QueueEngine`); a command reaches
    ``command`` in about 20 cycles after its queue entry has arrived. A block in 5 cycles, in 7
    when it spans two host pages.
    """

    def __init__(self, *, config: Config, identity: Identity | None = None):
        self._config = config
        self._identity = identity or Identity()
        super().__init__(
            {
                "register": In(RegisterBus()),
                "status": Out(PcieStatus()),
                "posted": In(1),
                "flush": Out(1),
                "flushed": In(1),
                "flush_cache": Out(1),
                "cache_flushed": In(1),
                "cache_stored": In(1),
                "discard": Out(1),
                "host_idle": In(1),
                "reset_done": Out(1),
                "read_request": Out(stream.Signature(read_request(config))),
                "read_done": In(stream.Signature(read_done(config))),
                "inbox_write": In(stream.Signature(inbox_beat(config))),
                "write_request": Out(stream.Signature(write_request(config))),
                "write_done": In(line_stream(config)),
                "post": Out(stream.Signature(post())),
                "messages": Out(Messages()),
                "command": Out(stream.Signature(command(config))),
                "completion": In(stream.Signature(completion(config))),
                "fetch": In(stream.Signature(transfer(config))),
                "fetched": Out(stream.Signature(fetched(config))),
                "deliver": In(stream.Signature(transfer(config))),
                "delivered": Out(stream.Signature(delivered(config))),
                "manage_request": Out(stream.Signature(manage_request(config))),
                "manage_response": In(stream.Signature(manage_response(config))),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "volume_read": Out(volume_read(config)),
                "port_read": Out(port_read(config)),
                "drive_capacity_read": Out(capacity_read(config)),
                "drive_present": In(config.ports),
                "drive_failed": In(MAX_DRIVES),
                "drive_used": In(MAX_DRIVES),
                "volume_exists": In(config.volumes),
                "identity": In(IDENTITY_BITS),
                "nonce": In(NONCE_BITS),
                "temperature": In(16),
                "begins": Out(1),
                "begun": Out(command_begin(config)),
                "ends": Out(1),
                "ended": Out(config.slot_bits),
                "line_write": Out(write_port(config)),
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "busy": Out(1),
            }
            | (
                {"line_read": Out(ReadPort(config)), "size_read": Out(volume_read(config))}
                if config.compare_and_deallocate
                else {}
            )
            | (
                {
                    "drive_stale": In(MAX_DRIVES),
                    "array_states": In(2 * config.arrays),
                    "array_unsynced": In(config.arrays),
                    "array_assumed": In(config.arrays),
                    "array_news": In(1),
                    "report_read": Out(report_read()),
                    "report_shows": Out(1),
                    "told": In(config.volumes),
                    "tells": In(telling(config)),
                    "answers": Out(1),
                    "answer": Out(answer(config)),
                    "heard": Out(config.queue_pairs + 1),
                    "unheard": Out(config.queue_pairs + 1),
                }
                if config.background
                else {}
            )
            | ({"drive_emulated": In(config.ports)} if config.sector_emulation else {})
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.registers = registers = Registers(config=config)
        m.submodules.function_reset = function_reset = FunctionReset()
        m.submodules.interrupts = interrupts = Interrupts(config=config)
        m.submodules.coalesce = coalesce = Coalesce(config=config)
        m.submodules.queues = queues = QueueEngine(config=config)
        m.submodules.entries = entries = EntryMemory(config=config)
        m.submodules.admin_entry = admin_entry = AdminEntry(config=config)
        m.submodules.decode = decode = Decode(config=config)
        m.submodules.slots = slots = SlotTable(config=config)
        m.submodules.prp = prp = Prp(config=config)
        m.submodules.delivery = delivery = Delivery(config=config)
        m.submodules.admin = admin = Admin(config=config)
        m.submodules.sender = sender = PageSender(config=config)
        m.submodules.pages = pages = PageGenerator(config=config, identity=self._identity)
        m.submodules.health = health = Health(config=config)
        m.submodules.names = names = Names(config=config)
        m.submodules.lifetimes = lifetimes = Lifetimes(config=config)

        examines = config.compare_and_deallocate
        m.submodules.reads = reads = Merge(read_request(config), inputs=3 + examines)
        m.submodules.writes = writes = Merge(write_request(config), inputs=2)
        m.submodules.fills = fills = Merge(fetched(config), inputs=2)
        m.submodules.posts = posts = Merge(post(), inputs=2)
        m.submodules.ends = ends = Merge(finish(config), inputs=4)
        m.submodules.rejects = rejects = Merge(rejected(config), inputs=2 + examines)
        m.submodules.finished = finished = Merge(completion(config), inputs=1)
        m.submodules.arrived = arrived = Skid(fetched(config))
        m.submodules.settle = settle = Settle(fetched(config))
        blocks = [registers, interrupts, coalesce, queues, decode, slots, prp, delivery, admin]
        blocks += [sender, pages, health, reads, writes, fills, posts, ends, rejects, finished]
        blocks += [arrived, admin_entry, settle, lifetimes]
        moves, moved = Signal(), Signal()
        # A link reset is to the host's side what a function level reset is.
        resets = Signal()
        m.d.comb += resets.eq(self.status.function_reset | self.status.link_reset)
        settled = Signal()

        # Registers, doorbells, vectors.
        connect(m, flipped(self.register), registers.register)
        connect(m, registers.admin, queues.admin)
        connect(m, registers.doorbell, queues.doorbell)
        connect(m, registers.vectors, interrupts.vectors)
        m.d.comb += [
            queues.enable.eq(registers.enable),
            queues.fetch_enable.eq(self.status.bus_master & ~registers.shutting),
            queues.shutting.eq(registers.shutting),
            coalesce.hurry.eq(registers.shutting),
            settled.eq(
                ~self.posted & ~self.post.valid & ~queues.post.valid & ~interrupts.leaving
            ),
            queues.settled.eq(settled),
            registers.settled.eq(settled),
            self.flush.eq(registers.flush),
            registers.flushed.eq(self.flushed),
            registers.running.eq(queues.running),
            registers.reset.eq(resets),
            registers.draining.eq(function_reset.draining),
            registers.forgotten.eq(function_reset.forgotten),
            function_reset.request.eq(resets),
            function_reset.idle.eq(self.host_idle & ~moved),
            function_reset.bus_master.eq(self.status.bus_master),
            function_reset.enable.eq(registers.enable),
            function_reset.running.eq(queues.running),
            self.discard.eq(function_reset.draining),
            self.reset_done.eq(function_reset.done & self.status.function_reset),
            interrupts.reset.eq(resets),
            registers.drained.eq(queues.drained),
            registers.fatal.eq(
                registers.enable & (decode.dropped.valid | admin_entry.dropped.valid)
            ),
            interrupts.enable.eq(self.status.msix_enable),
            interrupts.mask.eq(self.status.msix_mask),
            interrupts.clear.eq(~queues.running | ~registers.enable),
            interrupts.raised.eq(coalesce.passed),
            coalesce.raised.eq(queues.raised),
            coalesce.vector.eq(queues.vector),
            coalesce.clear.eq(~queues.running | ~registers.enable),
            coalesce.now.eq(self.now),
            self.deadline.eq(coalesce.deadline),
        ]
        for name in ("threshold", "delay", "uncoalesced"):
            m.d.comb += getattr(coalesce, name).eq(getattr(admin, name))

        # What the host's answers are for: entries, lists, blocks.
        done = self.read_done.payload
        blocks_read, zeroed = fills.inputs
        taken = self.read_done.valid & self.read_done.ready
        beat_shift = (config.beat_dwords - 1).bit_length()
        entry_beats = sqe_slots(config) * SQE_DWORDS >> beat_shift
        parameter_beat = inbox_dwords(config) >> beat_shift
        first_admin_beat = parameter_beat - (SQE_DWORDS >> beat_shift)
        first_entry_beat = first_admin_beat - entry_beats
        inbox = self.inbox_write
        is_entry, is_admin = Signal(), Signal()
        m.d.comb += [
            arrived.input.valid.eq(self.read_done.valid & (done.kind == Kind.BLOCK)),
            arrived.input.payload.line.eq(done.index),
            arrived.input.payload.error.eq(done.error),
            self.read_done.ready.eq((done.kind != Kind.BLOCK) | arrived.input.ready),
            queues.done.eq(taken & (done.kind == Kind.ENTRIES)),
            queues.done_index.eq(done.index),
            queues.done_error.eq(done.error),
            admin_entry.done.eq(queues.done & (done.index == ADMIN_FETCH)),
            admin_entry.done_error.eq(done.error),
            queues.admin_taken.eq(admin_entry.taken),
            admin.read_done.eq(taken & (done.kind == Kind.PARAMETER)),
            admin.read_error.eq(done.error),
            prp.list_done.eq(taken & (done.kind == Kind.LIST)),
            prp.list_done_slot.eq(done.index),
            prp.list_done_error.eq(done.error),
            inbox.ready.eq(1),
            is_entry.eq(inbox.payload.address >= first_entry_beat),
            is_admin.eq(inbox.payload.address >= first_admin_beat),
            admin_entry.write_beat.eq(inbox.payload.address - first_admin_beat),
            admin_entry.write_data.eq(inbox.payload.data),
            entries.write_beat.eq(inbox.payload.address - first_entry_beat),
            entries.write_data.eq(inbox.payload.data),
            prp.write_beat.eq(inbox.payload.address),
            prp.write_data.eq(inbox.payload.data),
        ]
        with m.If(inbox.valid):
            with m.If(inbox.payload.address == parameter_beat):
                m.d.sync += admin.parameter.eq(inbox.payload.data)
            with m.Elif(is_admin):
                m.d.comb += admin_entry.write_mask.eq(inbox.payload.mask)
            with m.Elif(is_entry):
                m.d.comb += entries.write_mask.eq(inbox.payload.mask)
            with m.Else():
                m.d.comb += prp.write_mask.eq(inbox.payload.mask)
        connect(m, queues.read_request, reads.inputs[0])
        connect(m, admin.read_request, reads.inputs[2])
        connect(m, prp.read_request, reads.inputs[1])
        connect(m, reads.output, flipped(self.read_request))

        # Commands: entries, slots, PRPs, data path.
        connect(m, queues.entry, decode.entry)
        m.d.comb += [
            entries.read_beat.eq(decode.beat),
            decode.beat_data.eq(entries.read_data),
            decode.write_through.eq(admin.write_through),
            decode.detached.eq(admin.detached),
            lifetimes.exists.eq(self.volume_exists),
            lifetimes.volume.eq(decode.volume),
            lifetimes.submitted.eq(decode.submitted),
            decode.there.eq(lifetimes.there),
            decode.belongs.eq(lifetimes.belongs),
            queues.age.eq(lifetimes.age),
            self.begun.late.eq(lifetimes.late if config.background else 0),
            slots.store.eq(decode.store),
            slots.stop.eq(~registers.enable),
            decode.stop.eq(~registers.enable),
            slots.store_slot.eq(decode.store_slot),
            slots.store_command.eq(decode.store_command),
            slots.store_parts.eq(decode.store_parts),
            # A namespace that is none has no volume; it may count for any.
            self.begins.eq(decode.store),
            self.begun.slot.eq(decode.store_slot),
            self.begun.volume.eq(decode.store_command.nsid - 1),
            self.ends.eq(slots.freed),
            self.ended.eq(slots.freed_slot),
        ]
        connect(m, slots.allocate, decode.allocate)
        connect(m, decode.admit, prp.admit)
        connect(m, prp.command, flipped(self.command))

        # Data.
        # Each slot is in it once at most: an end, or an Abort, waits for no command to go on.
        m.submodules.next_parts = next_parts = Queue(again(config), config.commands)
        connect(m, next_parts.output, prp.again)
        connect(m, slots.again, next_parts.input)
        connect(m, admin.abort, slots.abort)
        connect(m, slots.cancel, prp.cancel)
        m.d.comb += [
            admin.aborted.eq(slots.aborted),
            admin.found.eq(slots.found),
            slots.cancelled.eq(prp.cancelled),
            slots.held.eq(prp.found),
        ]
        connect(m, prp.zero, pages.zero)
        connect(m, arrived.output, blocks_read)
        connect(m, fills.output, settle.input)
        m.d.comb += [
            zeroed.valid.eq(pages.zeroed.valid),
            zeroed.payload.line.eq(pages.zeroed.payload),
            pages.zeroed.ready.eq(zeroed.ready),
        ]
        connect(m, flipped(self.deliver), prp.deliver)
        m.d.comb += [
            delivery.begin.eq(prp.delivers),
            delivery.begin_slot.eq(prp.delivers_slot),
            delivery.begin_line.eq(prp.delivers_line),
            delivery.page_line.eq(sender.line),
            delivery.has_page.eq(sender.owns_line),
            sender.sent.eq(delivery.page_sent),
        ]
        connect(m, prp.write_request, writes.inputs[0])
        connect(m, sender.write_request, writes.inputs[1])
        connect(m, writes.output, flipped(self.write_request))
        connect(m, flipped(self.write_done), delivery.write_done)
        connect(m, delivery.delivered, flipped(self.delivered))

        # Blocks and ranges that are looked at here.
        if not examines:
            connect(m, settle.output, flipped(self.fetched))
            connect(m, prp.discard, delivery.discarded)
            connect(m, flipped(self.fetch), prp.fetch)
            connect(m, flipped(self.allocate), sender.allocate)
        else:
            m.submodules.examine = examine = Examine(config=config)
            m.submodules.unsents = unsents = Merge(unsent(config), inputs=2)
            m.submodules.fetches = fetches = Merge(transfer(config), inputs=2)
            blocks += [examine, unsents, fetches]
            connect(m, prp.compare, examine.compare)
            connect(m, decode.ranges, examine.ranges)
            connect(m, flipped(self.fetch), fetches.inputs[0])
            connect(m, examine.fetch, fetches.inputs[1])
            connect(m, fetches.output, prp.fetch)
            connect(m, examine.read_request, reads.inputs[3])
            connect(m, examine.ended, rejects.inputs[2])
            connect(m, prp.discard, unsents.inputs[0])
            connect(m, examine.compared, unsents.inputs[1])
            connect(m, unsents.output, delivery.discarded)
            connect(m, examine.line_read, flipped(self.line_read))
            connect(m, examine.volume_read, flipped(self.size_read))
            own = examine.waits & (settle.output.payload.line == examine.line)
            split(m, settle.output, [(own, examine.fetched), (~own, flipped(self.fetched))])
            # The first line that is offered stays with `examine`.
            m.d.comb += [
                examine.allocate.payload.eq(self.allocate.payload),
                sender.allocate.payload.eq(self.allocate.payload),
                examine.allocate.valid.eq(self.allocate.valid),
                sender.allocate.valid.eq(self.allocate.valid & ~examine.allocate.ready),
                self.allocate.ready.eq(examine.allocate.ready | sender.allocate.ready),
            ]

        # Completions.
        connect(m, flipped(self.completion), finished.inputs[0])
        connect(m, finished.output, slots.completion)
        connect(m, decode.rejected, rejects.inputs[0])
        connect(m, prp.rejected, rejects.inputs[1])
        connect(m, rejects.output, slots.rejected)
        connect(m, slots.finish, ends.inputs[0])
        connect(m, admin.finish, ends.inputs[1])
        connect(m, admin.report, queues.report)
        connect(m, decode.dropped, ends.inputs[2])
        connect(m, admin_entry.dropped, ends.inputs[3])
        connect(m, ends.output, queues.finish)
        connect(m, queues.post, posts.inputs[0])
        connect(m, interrupts.post, posts.inputs[1])
        connect(m, interrupts.messages, flipped(self.messages))
        connect(m, posts.output, flipped(self.post))

        # Admin.
        connect(m, admin_entry.entry, admin.entry)
        connect(m, admin.change, queues.change)
        connect(m, queues.changed, admin.changed)
        connect(m, admin.send, sender.request)
        connect(m, sender.response, admin.sent)
        connect(m, sender.build, pages.request)
        connect(m, pages.response, sender.built)
        connect(m, admin.manage_request, flipped(self.manage_request))
        connect(m, flipped(self.manage_response), admin.manage_response)
        connect(m, sender.free, flipped(self.free))
        connect(m, pages.line_write, flipped(self.line_write))
        for name in (
            "geometry_read",
            "member_read",
            "volume_read",
            "port_read",
            "drive_capacity_read",
        ):
            connect(m, getattr(pages, name), flipped(getattr(self, name)))
        m.d.comb += [
            admin.entry_sizes_good.eq(registers.entry_sizes_good),
            admin.report_posted.eq(queues.report_posted),
            admin.report_waits.eq(queues.report_waits),
            admin.caching.eq(slots.caching),
            admin.stop.eq(~registers.enable | registers.shutting),
            self.flush_cache.eq(admin.flush),
            admin.flushed.eq(self.cache_flushed),
            admin.stored.eq(self.cache_stored),
            admin.io_queues.eq(queues.io_queues),
            admin.clear.eq(~queues.running),
            queues.burst.eq(admin.burst),
            pages.drive_present.eq(self.drive_present),
            pages.drive_failed.eq(self.drive_failed),
        ]
        stale = Signal(MAX_DRIVES)
        if config.background:
            connect(m, pages.report_read, flipped(self.report_read))
            m.d.comb += [
                lifetimes.told.eq(self.told),
                slots.tells.eq(self.tells),
                self.answers.eq(queues.answers),
                self.answer.eq(queues.answer),
                self.heard.eq(queues.heard),
                self.unheard.eq(queues.unheard),
                self.report_shows.eq(pages.report_shows),
                stale.eq(self.drive_stale),
                pages.drive_stale.eq(stale),
                pages.array_states.eq(self.array_states),
                pages.array_unsynced.eq(self.array_unsynced),
                pages.array_assumed.eq(self.array_assumed),
                admin.news.eq(self.array_news),
            ]

        # Names and formats of volumes.
        request, response = self.manage_request, self.manage_response
        m.d.comb += [
            names.identity.eq(self.identity),
            names.nonce.eq(self.nonce),
            names.requests.eq(request.valid & request.ready),
            names.request.eq(request.payload),
            names.answers.eq(response.valid & response.ready),
            names.response.eq(response.payload),
            names.volume.eq(pages.named),
            names.chunk.eq(pages.chunk),
            pages.digits.eq(names.digits),
            *(ours.eq(part) for ours, part in zip(pages.name, names.name, strict=True)),
        ]
        if config.sector_emulation:
            m.submodules.formats = formats = Formats(config=config)
            m.d.comb += [
                formats.requests.eq(request.valid & request.ready),
                formats.request.eq(request.payload),
                formats.answers.eq(response.valid & response.ready),
                formats.response.eq(response.payload),
                formats.emulated.eq(self.drive_emulated),
                decode.sectors.eq(formats.formats.sectors),
                pages.formats.eq(formats.formats),
                pages.drive_emulated.eq(self.drive_emulated),
            ]

        # Logs and events.
        connect(m, slots.note, health.io)
        connect(m, admin.note, health.admin)
        connect(m, pages.log_read, health.read)
        kelvin = Signal(16)
        warm, hot = Signal(), Signal()
        too_warm, degraded = Signal(), Signal()
        # An error event is told once its entry is in the log that it names.
        misuse = queues.misuse | registers.misuse
        recording, by_value = Signal(), Signal()
        with m.If(health.recorded):
            m.d.sync += recording.eq(0)
        with m.If(misuse):
            m.d.sync += recording.eq(1)
            with m.If(~recording | health.recorded):
                m.d.sync += by_value.eq(queues.misuse & queues.misuse_value)
        m.d.sync += [
            kelvin.eq(Mux(self.temperature == 0, config.temperature_kelvin, self.temperature)),
            warm.eq((kelvin >= WARNING_KELVIN) & (kelvin < CRITICAL_KELVIN)),
            hot.eq(kelvin >= CRITICAL_KELVIN),
            too_warm.eq((kelvin >= admin.over) | (kelvin <= admin.under)),
            degraded.eq((self.drive_used & (self.drive_failed | stale)).any()),
        ]
        warning = Cat(Const(0, 1), too_warm, degraded, Const(0, 2))
        m.d.comb += [
            health.now.eq(self.now),
            health.conditions.eq(Cat(Const(1, 1), slots.active, warm, hot)),
            health.misuse.eq(misuse),
            health.refresh.eq(pages.refresh),
            health.hold.eq(pages.hold),
            health.showing.eq(pages.showing),
            health.shown.eq(pages.shown),
            pages.held.eq(health.held),
            pages.fresh.eq(health.fresh),
            pages.newest.eq(health.newest),
            pages.warning.eq(warning),
            pages.temperature.eq(kelvin),
            pages.changed.eq(admin.changes),
            pages.detached.eq(admin.detached),
            pages.probe.eq(admin.probe),
            admin.allocated.eq(pages.allocated),
            admin.warning.eq(warning),
            admin.misuse.eq(health.recorded),
            admin.misuse_value.eq(by_value),
            moves.eq(
                Cat(block.busy for block in blocks).any()
                | taken
                | inbox.valid
                | next_parts.busy
            ),
            self.busy.eq(moves | moved | function_reset.busy),
        ]
        m.d.sync += moved.eq(moves)
        return m
