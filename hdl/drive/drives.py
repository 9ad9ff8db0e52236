"""All drive ports: operations in, commands to the drives, data between drives and line store."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.drive.data.block_control import BlockControl
from hdl.drive.data.read_path import ReadPath
from hdl.drive.data.write_path import WritePath
from hdl.drive.queue.command_queue import CommandQueue
from hdl.drive.records import PATHS, path_ports
from hdl.drive.recovery.detach import Detach
from hdl.drive.recovery.fence import Fence
from hdl.drive.recovery.ladder import Ladder
from hdl.flow.drive_port import DrivePort
from hdl.flow.line import ReadPort, line_stream, write_port
from hdl.flow.operation import finished, landed, load_bits, operation
from hdl.flow.piece import piece
from hdl.flow.recovery import tried_bits
from hdl.kit.merge import Merge
from hdl.kit.table import TableRead


class Drives(wiring.Component):
    """Runs operations on the drive ports and moves their data.

    `CommandQueue` merges operations into commands and reports their ends, `BlockControl` gives each
    block its line, two paths each way move the data: even ports on path 0, odd ports on path 1.
    `Ladder` bounds the time that a command takes, a `Fence` shuts a port that is reset, and
    `Detach` ends a read that is slow.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    operation
        What to do; see `hdl.flow.operation.operation`. Taken in about 2 cycles; waits while
        ``config.operations`` are in the block.
    finished
        Ends of operations; `hdl.flow.operation.finished`. Order is that of the drives.
    landed
        Blocks read for host commands. A block is offered 6 cycles after its last beat was
        taken by the line store, when the block control has nothing else to do.
    piece
        Pieces of blocks of operations with ``early`` that can be read from their lines; those of a
        block in order. Each must be taken within 4 cycles. Not there without ``Config.early_rows``.
    allocate
        Lines for blocks of host commands. A port that finds none waits alone.
    free
        Lines of blocks that a drive has broken off.
    line_read
        The paths' ports of the line store for reading, a beat a cycle each.
    line_write
        The paths' ports of the line store for writing, a beat a cycle each.
    drives
        The drive ports. A read that ends inside a block must offer its completion before more data.
    failed
        A bit per port: what is not yet sent ends at once with GONE. Commands that have been sent
        end when the drive says so.
    doubted
        A bit per port: nothing is sent until it is known what becomes of the drive, which has
        restarted. Not there without ``Config.background``.
    restarts
        How often the drive of each port has restarted, a cycle after it has. Not there without
        ``Config.background``.
    fail
        Ports whose drive does not end its commands; they have been reset for the last time.
    now
        Time in clock cycles.
    deadline
        When a command may have taken too long, in clock cycles; all ones if none can.
    room
        How many operations can be taken.
    load_read
        How many blocks a port has been asked for and not answered.
    busy
        Something moves without a drive, a host or a line being waited for.

    Errors: an operation ends with the status of its drive command, or UNREACHED if it was another
    one's fault. A command that ends well without having moved all its data counts as ABORTED.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "operation": In(stream.Signature(operation(config))),
                "finished": Out(stream.Signature(finished(config))),
                "landed": Out(stream.Signature(landed(config))),
                "piece": Out(stream.Signature(piece(config))),
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "line_read": Out(ReadPort(config)).array(PATHS),
                "line_write": Out(write_port(config)).array(PATHS),
                "drives": Out(DrivePort(config)).array(config.ports),
                "failed": In(MAX_DRIVES),
                "doubted": In(MAX_DRIVES),
                "restarts": In(tried_bits(config)).array(config.ports),
                "fail": Out(stream.Signature(config.port_bits)),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "room": Out(range(config.operations + 1)),
                "load_read": In(TableRead(config.port_bits, load_bits(config))),
                "busy": Out(1),
            }
        )

        self._queue = CommandQueue(config=config)
        self._blocks = BlockControl(config=config)
        self._readers = [
            ReadPath(config=config, ports=path_ports(config, path)) for path in range(PATHS)
        ]
        self._writers = [
            WritePath(config=config, ports=path_ports(config, path)) for path in range(PATHS)
        ]
        # A drive that has restarted may give old data. Nobody knows of it in that cycle yet.
        self._held = Signal(config.ports)

    def elaborate(self, platform) -> Module:
        m = Module()
        parts = self._connect_operations(m)
        drives = [flipped(drive) for drive in self.drives]
        if self._config.command_timeout_ms:
            recovery, drives = self._recover(m, drives)
            parts += recovery
        else:
            m.d.comb += self.deadline.eq(-1)
        parts += self._move_data(m, drives)
        if self._config.early_rows:
            parts.append(self._tell_pieces(m))
        for index, drive in enumerate(drives):
            connect(m, self._queue.command[index], drive.command)
            connect(m, drive.grant, self._blocks.grant[index])
            connect(m, drive.completion, self._blocks.completion[index])
        m.d.comb += self.busy.eq(Cat(part.busy for part in parts).any())
        return m

    def _connect_operations(self, m: Module) -> list:
        """Operations become commands, and commands blocks. Returns the parts."""
        queue, blocks = self._queue, self._blocks
        m.submodules.queue = queue
        m.submodules.blocks = blocks
        connect(m, flipped(self.operation), queue.operation)
        connect(m, queue.finished, flipped(self.finished))
        connect(m, queue.start, blocks.start)
        connect(m, blocks.end, queue.end)
        connect(m, blocks.operations, queue.operations)
        connect(m, blocks.next_operation, queue.next_operation)
        connect(m, blocks.landed, flipped(self.landed))
        connect(m, flipped(self.allocate), blocks.allocate)
        connect(m, blocks.free, flipped(self.free))
        connect(m, flipped(self.load_read), queue.load_read)
        m.d.comb += [
            self.room.eq(queue.room),
            queue.failed.eq(self.failed),
            self._held.eq(Cat(drive.restarted for drive in self.drives) | self.doubted),
        ]
        for count, known in zip(queue.restarts, self.restarts, strict=True):
            m.d.comb += count.eq(known)
        return [queue, blocks]

    def _recover(self, m: Module, drives: list) -> tuple[list, list]:
        """Commands that do not end. Returns the parts, and the ports behind them."""
        config, queue, blocks = self._config, self._queue, self._blocks
        m.submodules.ladder = ladder = Ladder(config=config)
        parts, inner = [ladder], []
        orphans = Signal(config.ports * config.drive_tags)
        filled = [writer.filled for writer in self._writers]
        connect(m, ladder.fail, flipped(self.fail))
        m.d.comb += [
            ladder.now.eq(self.now),
            self.deadline.eq(ladder.deadline),
            ladder.failed.eq(self.failed),
            ladder.began.eq(queue.began),
            ladder.begun.eq(queue.begun),
            ladder.ended.eq(blocks.end.valid & queue.end.ready),
            ladder.over.eq(blocks.end.payload.command),
            ladder.elsewhere.eq(queue.elsewhere),
            ladder.orphans.eq(orphans),
            ladder.filled.eq(Cat(filled[p % PATHS][p // PATHS] for p in range(config.ports))),
            queue.held.eq(ladder.held | self._held),
            queue.orphans.eq(orphans),
        ]
        for index, drive in enumerate(drives):
            m.submodules[f"fence_{index}"] = fence = Fence(config=config)
            connect(m, fence.outer, drive)
            m.d.comb += [
                fence.shut.eq(ladder.shut[index]),
                fence.ends.eq(ladder.ends[index]),
                fence.ending.eq(ladder.ending),
            ]
            behind = fence.inner
            if config.slow_read_ms:
                m.submodules[f"detach_{index}"] = detach = Detach(config=config)
                parts.append(detach)
                connect(m, detach.outer, fence.inner)
                m.d.comb += [
                    detach.detach.eq(ladder.detaches[index]),
                    detach.tag.eq(ladder.ending.tag),
                    detach.forget.eq(ladder.shut[index]),
                    queue.freed[index].eq(detach.freed),
                    queue.slow[index].eq(detach.orphans.any()),
                    orphans.word_select(index, config.drive_tags).eq(detach.orphans),
                ]
                behind = detach.inner
            m.d.comb += [
                behind.abort.eq(ladder.abort[index]),
                behind.abort_tag.eq(ladder.abort_tag),
            ]
            inner.append(behind)
        return parts, inner

    def _move_data(self, m: Module, drives: list) -> list:
        """Data between lines and ports: port p is on path p mod `PATHS`. Returns the parts."""
        blocks = self._blocks
        for path, (reader, writer) in enumerate(zip(self._readers, self._writers, strict=True)):
            m.submodules[f"read_path_{path}"] = reader
            m.submodules[f"write_path_{path}"] = writer
            connect(m, getattr(blocks, f"read_control_{path}"), reader.reads)
            connect(m, getattr(blocks, f"read_path_{path}"), reader.control)
            connect(m, getattr(blocks, f"write_path_{path}"), writer.control)
            connect(m, reader.line_write, flipped(self.line_write[path]))
            connect(m, writer.line_read, flipped(self.line_read[path]))
            for place, drive in enumerate(drives[path::PATHS]):
                connect(m, drive.read_data, reader.data[place])
                connect(m, writer.data[place], drive.write_data)
        return [*self._readers, *self._writers]

    def _tell_pieces(self, m: Module) -> Merge:
        """Pieces that have landed, of all paths. Returns the part."""
        m.submodules.pieces = pieces = Merge(piece(self._config), inputs=PATHS)
        connect(m, pieces.output, flipped(self.piece))
        for reader, told in zip(self._readers, pieces.inputs, strict=True):
            with m.If(told.ready):
                m.d.sync += told.valid.eq(0)
            with m.If(reader.told):
                m.d.sync += [told.valid.eq(1), told.payload.eq(reader.piece)]
        return pieces
