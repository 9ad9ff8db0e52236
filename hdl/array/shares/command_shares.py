"""Host commands wait here for their array's share of what is on its way."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.shares.turnstile import Turnstile
from hdl.config import OPERATIONS_PER_BLOCK, Config
from hdl.flow.host_command import HostOpcode, command
from hdl.flow.table_read import volume_read
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table


class CommandShares(wiring.Component):
    """Lets a command pass when its array may have so many blocks on their way. Otherwise the
    command waits in a queue of its array, and those of other arrays go on.

    A command counts for its blocks, from here until it has completed. A FLUSH counts for the drive
    operations that it is. Behind this a command needs lines for its data, row slots, places to be
    parked, and `OPERATIONS_PER_BLOCK` drive operations for each block. There are as many of all
    these as `Config.shared_blocks` need. So nobody waits in the mapper, in
    `hdl.stripe.dispatch.Dispatch` or in `hdl.stripe.gather.gather.Gather` for an array that gives
    nothing back. What a command still does when a drive fails is counted with the command, so
    retries pass at once.

    With a single array commands pass as they come, at no latency.

    Parameters
    ----------
    config
        Sizes, with ``array_shares``.

    Ports
    -----
    command
        Host commands, and retries of commands that have passed.
    passed
        To the mapper. Commands of an array come in order.
    ended
        A host command has completed, in this command slot.
    exists
        One bit per array. It is there.
    volume_read
        Table of the volumes.
    waiting
        One bit per array. Commands wait for its share.
    busy
        Something moves.

    Latency: with several arrays 8 cycles. About 20 from the end of a command to one that waited for
    it. About 13 cycles a command in all.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(command(config))),
                "passed": Out(stream.Signature(command(config))),
                "ended": In(Pulse(config.slot_bits)),
                "exists": In(config.arrays),
                "volume_read": Out(volume_read(config)),
                "waiting": Out(config.arrays),
                "busy": Out(1),
            }
        )
        self._turnstile = Turnstile(
            config=config,
            count=config.commands,
            total=config.shared_blocks,
            least=config.command_cost,
            most=config.commands * config.command_cost,
        )
        # Commands that wait, by their slots.
        kept = data.StructLayout({"command": command(config), "array": config.array_bits})
        self._kept = Table(kept, config.commands)

        # The command at hand.
        self._command = Signal(command(config))
        self._array = Signal(config.array_bits)
        self._passed = Signal()  # it has passed already
        self._offered = Signal()  # it is being passed, at no latency

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.turnstile = turnstile = self._turnstile
        m.submodules.kept = self._kept
        self._connect_turnstile(m)
        self._connect_tables(m)
        with m.FSM(name="share") as fsm:
            self._take(m)
            self._load(m)
            self._find_array(m)
            self._ask(m)
            self._pass(m)
            rests = (
                fsm.ongoing("TAKE")
                & ~turnstile.calls
                & ~(self.command.valid & self.command.ready)
            )
            refused = fsm.ongoing("PASS") & ~self.passed.ready
            m.d.comb += self.busy.eq(~(rests | refused) | turnstile.busy)
        return m

    def _connect_turnstile(self, m: Module) -> None:
        """What the command asks for, and what has ended."""
        turnstile, command = self._turnstile, self._command
        flushes = command.opcode == HostOpcode.FLUSH
        flush_cost = -(-self._config.ports // OPERATIONS_PER_BLOCK)
        m.d.comb += [
            turnstile.ended.eq(self.ended.valid),
            turnstile.ended_number.eq(self.ended.payload),
            turnstile.exists.eq(self.exists),
            turnstile.number.eq(command.slot),
            turnstile.array.eq(self._array),
            turnstile.amount.eq(Mux(flushes, flush_cost, command.blocks + 1)),
            turnstile.forced.eq(self._passed),
            self.waiting.eq(turnstile.waiting),
        ]

    def _connect_tables(self, m: Module) -> None:
        """Where the command waits, and its volume."""
        kept, command = self._kept, self._command
        m.d.comb += [
            kept.reads[0].address.eq(command.slot),
            kept.write.address.eq(command.slot),
            kept.write.data.command.eq(command),
            kept.write.data.array.eq(self._array),
            self.volume_read.address.eq(command.volume),
            self.passed.payload.eq(command),
        ]

    def _take(self, m: Module) -> None:
        """The state TAKE: a command of a single array, one that is called, or a new one."""
        turnstile, calls, command = self._turnstile, self._turnstile.calls, self._command
        with m.State("TAKE"):
            m.d.sync += self._offered.eq(self.passed.valid & ~self.passed.ready)
            with m.If(self._offered | (turnstile.alone & turnstile.settled & ~calls)):
                m.d.comb += [
                    self.passed.valid.eq(self.command.valid),
                    self.passed.payload.eq(self.command.payload),
                    self.command.ready.eq(self.passed.ready),
                ]
                with m.If(self.command.valid & self.passed.ready):
                    m.d.sync += self._passed.eq(1)
                    m.next = "READ-VOLUME"
            with m.Elif(calls):
                m.d.comb += turnstile.woken.ready.eq(1)
                with m.If(turnstile.woken.valid):
                    m.d.sync += command.slot.eq(turnstile.woken.payload)
                    m.next = "READ-COMMAND"
            with m.Elif(~turnstile.alone):
                m.d.comb += self.command.ready.eq(1)
                with m.If(self.command.valid):
                    m.d.sync += self._passed.eq(0)
                    m.next = "READ-VOLUME"
            with m.If(self.command.valid & self.command.ready):
                m.d.sync += command.eq(self.command.payload)

    def _load(self, m: Module) -> None:
        """The states READ-COMMAND and LOAD-COMMAND: the first that waits for an array.

        It goes on whatever has become of its volume.
        """
        with m.State("READ-COMMAND"):
            m.next = "LOAD-COMMAND"

        with m.State("LOAD-COMMAND"):
            m.d.sync += [
                self._command.eq(self._kept.reads[0].data.command),
                self._array.eq(self._kept.reads[0].data.array),
                self._passed.eq(0),
            ]
            m.next = "ASK"

    def _find_array(self, m: Module) -> None:
        """The states READ-VOLUME and FIND-ARRAY: the array of the command."""
        with m.State("READ-VOLUME"):
            m.next = "FIND-ARRAY"

        with m.State("FIND-ARRAY"):
            m.d.sync += self._array.eq(self.volume_read.data.array)
            m.next = "ASK"
            # The mapper refuses it.
            with m.If(~self.volume_read.data.valid):
                self._go_on(m)

    def _go_on(self, m: Module) -> None:
        """Ends a state: the command passes, unless it has already."""
        m.next = "PASS"
        with m.If(self._passed):
            m.next = "TAKE"

    def _ask(self, m: Module) -> None:
        """The state ASK: whether the array may have so much."""
        with m.State("ASK"):
            m.d.comb += self._turnstile.ask.eq(1)
            with m.If(self._turnstile.granted):
                self._go_on(m)
            with m.If(self._turnstile.refused):
                m.d.comb += self._kept.store()
                m.next = "TAKE"

    def _pass(self, m: Module) -> None:
        """The state PASS: the mapper takes the command."""
        with m.State("PASS"):
            m.d.comb += self.passed.valid.eq(1)
            with m.If(self.passed.ready):
                m.next = "TAKE"
