"""The operation that a row sends to one of its targets."""

from amaranth.hdl import Array, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.array_state import eras
from hdl.flow.geometry import data_offset
from hdl.flow.operation import Opcode, Owner, operation
from hdl.flow.recovery import tried_bits
from hdl.flow.row import RowKind
from hdl.stripe.planning.program import migration_target, program, role_bits, target, target_bits
from hdl.stripe.rows.progress import Phase, progress


class RowOperation(wiring.Component):
    """Makes an operation from a row's program. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program
        The row's program.
    progress
        How far the row is in it.
    slot
        The row slot.
    number
        The target's number.
    target
        Where the target lies.
    role
        The role whose block the target has.
    joined_line
        The line of the joined block of that role.
    own_line
        The row's own line for that role.
    writing
        The phase writes.
    resending
        The operation is not sent for the first time.
    restarts, eras
        With ``background``: as for `hdl.stripe.rows.sequencer.Sequencer`.
    operation
        What to send.
    has_joined
        What is written to the target is in the joined line; else it is in the row's own.
    has_line
        The target's block is in a line. If not, it is to be made unreadable: a write is a
        WRITE_UNCORRECTABLE. Always 1 without ``background``.
    dated
        The operation writes what a walk has read. It may not be sent while it is undecided in which
        era its array is. Always 0 without ``background``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "program": In(program(config)),
                "progress": In(progress(config)),
                "slot": In(config.row_slot_bits),
                "number": In(target_bits(config)),
                "target": In(target(config)),
                "role": In(role_bits(config)),
                "joined_line": In(config.line_bits),
                "own_line": In(config.line_bits),
                "writing": In(1),
                "resending": In(1),
                "restarts": In(tried_bits(config)).array(config.ports),
                "eras": In(eras(config)),
                "operation": Out(operation(config)),
                "has_joined": Out(1),
                "has_line": Out(1),
                "dated": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config, program, target, sent = self._config, self.program, self.target, self.operation
        m = Module()
        walks = program.walk.any
        into_joined = program.fills & program.joined.bit_select(self.role, 1)
        recovers = program.kind == RowKind.RECOVER
        nowhere = program.joined & program.dead
        if config.background:
            nowhere |= program.joined & program.stale
        follows = self.writing | walks | program.gathered
        wrap = Mux(target.wrapped, 1 << program.strip_shift, 0)
        # Drives that change places soon, or have done so.
        pair = (self.number == program.migrated) | (self.number == migration_target(config))
        settles = program.settles & pair
        m.d.comb += [
            self.has_joined.eq(~walks & (program.mirrored | (self.role < program.data))),
            self.has_line.eq(1),
            sent.port.eq(target.port),
            sent.opcode.eq(Mux(self.writing, Opcode.WRITE, Opcode.READ)),
            # What fills a block for a write is not read for the host. A block that is written, and
            # has no drive, is there only with all that it is worked out from.
            sent.fua.eq(
                Mux(
                    self.writing,
                    program.fua | settles,
                    program.fua & (recovers | nowhere.any()) & ~program.fills,
                )
            ),
            sent.more.eq(follows & program.more & ~self.resending),
            sent.alone.eq(self.resending),
            sent.block.eq(program.row + data_offset(config, program) + wrap),
            sent.owner.eq(Owner.ROW),
            sent.index.eq(self.slot),
            sent.place.eq(self.number),
            sent.line.eq(
                Mux((self.writing & self.has_joined) | into_joined, self.joined_line, self.own_line)
            ),
            sent.elsewhere.eq(program.elsewhere),
            sent.early.any.eq(self.progress.early.any & ~self.writing),
            sent.early.seat.eq(self.progress.early.seat),
        ]
        if config.background:
            phase = self.progress.phase
            unreadable = (phase == Phase.SPOIL) | (phase == Phase.BLANK)
            since = program.era != self.eras[program.array]
            m.d.comb += [
                # What a walk has read is not written once its drives have restarted since.
                self.dated.eq(
                    walks & self.writing & (phase == Phase.WRITE) & program.read.any()
                ),
                sent.dated.eq(self.dated),
                sent.restarts.eq(Array(self.restarts)[target.port] - since),
                self.has_line.eq(
                    program.possible & (self.has_joined | ~program.salvage) & ~unreadable
                ),
            ]
            with m.If(self.writing & ~self.has_line):
                m.d.comb += sent.opcode.eq(Opcode.WRITE_UNCORRECTABLE)
        return m
