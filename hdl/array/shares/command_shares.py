"""Host commands wait here for their array's share of what is on its way."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.shares.turnstile import Turnstile
from hdl.config import OPERATIONS_PER_BLOCK, Config
from hdl.flow.host_command import HostOpcode, command
from hdl.flow.table_read import volume_read


class CommandShares(wiring.Component):
    """Lets a command pass when its array may have so many blocks on their way; else it waits in a
    queue of its array, and those of other arrays go on.

    A command counts for its blocks, from here until it has completed, and a FLUSH for the drive
    operations that it is. Whatever a command needs behind this, lines for its data, row slots,
    places to be parked, `OPERATIONS_PER_BLOCK` drive operations for each block, there are as many
    of these as `Config.shared_blocks` need. So nobody waits in the mapper, in
    `hdl.stripe.dispatch.Dispatch` or in `hdl.stripe.gather.gather.Gather` for an array that gives
    nothing back. What a command still does when a drive fails it is counted with the command:
    retries pass at once.

    With a single array commands pass as they come, at no latency.

    Parameters
    ----------
    config
        Sizes; with ``array_shares``.

    Ports
    -----
    command
        Host commands, and retries of commands that have passed.
    passed
        To the mapper; commands of an array in order.
    ended, ended_slot
        A pulse: a host command has completed.
    exists
        Bit an array.
    volume_read
        Table.
    waiting
        Bit an array: commands wait for its share.
    busy
        Something moves.

    Latency: with several arrays 8 cycles, and about 20 from the end of a command to one that waited
    for it; about 13 cycles a command in all.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(command(config))),
                "passed": Out(stream.Signature(command(config))),
                "ended": In(1),
                "ended_slot": In(config.slot_bits),
                "exists": In(config.arrays),
                "volume_read": Out(volume_read(config)),
                "waiting": Out(config.arrays),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        m.submodules.turnstile = turnstile = Turnstile(
            config=config,
            count=config.commands,
            total=config.shared_blocks,
            least=config.command_cost,
            most=config.commands * config.command_cost,
        )
        kept = data.StructLayout({"command": command(config), "array": config.array_bits})
        m.submodules.commands = commands = Memory(shape=kept, depth=config.commands, init=[])
        kept_read, kept_write = commands.read_port(), commands.write_port()

        item = Signal(command(config))
        array = Signal(config.array_bits)
        passed = Signal()  # it has passed already
        offered = Signal()  # it is being passed, at no latency
        m.d.comb += [
            turnstile.ended.eq(self.ended),
            turnstile.ended_number.eq(self.ended_slot),
            turnstile.exists.eq(self.exists),
            turnstile.number.eq(item.slot),
            turnstile.array.eq(array),
            turnstile.amount.eq(
                Mux(
                    item.opcode == HostOpcode.FLUSH,
                    -(-config.ports // OPERATIONS_PER_BLOCK),
                    item.blocks + 1,
                )
            ),
            turnstile.forced.eq(passed),
            self.waiting.eq(turnstile.waiting),
            kept_read.addr.eq(item.slot),
            kept_write.addr.eq(item.slot),
            kept_write.data.command.eq(item),
            kept_write.data.array.eq(array),
            self.volume_read.address.eq(item.volume),
            self.passed.payload.eq(item),
        ]
        calls = turnstile.calls

        with m.FSM(name="share") as fsm:
            with m.State("TAKE"):
                m.d.sync += offered.eq(self.passed.valid & ~self.passed.ready)
                with m.If(offered | (turnstile.alone & turnstile.settled & ~calls)):
                    m.d.comb += [
                        self.passed.valid.eq(self.command.valid),
                        self.passed.payload.eq(self.command.payload),
                        self.command.ready.eq(self.passed.ready),
                    ]
                    with m.If(self.command.valid & self.passed.ready):
                        m.d.sync += passed.eq(1)
                        m.next = "READ-VOLUME"
                with m.Elif(calls):
                    m.d.comb += turnstile.woken.ready.eq(1)
                    with m.If(turnstile.woken.valid):
                        m.d.sync += item.slot.eq(turnstile.woken.payload)
                        m.next = "READ-COMMAND"
                with m.Elif(~turnstile.alone):
                    m.d.comb += self.command.ready.eq(1)
                    with m.If(self.command.valid):
                        m.d.sync += passed.eq(0)
                        m.next = "READ-VOLUME"
                with m.If(self.command.valid & self.command.ready):
                    m.d.sync += item.eq(self.command.payload)

            # The first command that waits for an array, whatever has become of its volume.
            with m.State("READ-COMMAND"):
                m.next = "LOAD-COMMAND"
            with m.State("LOAD-COMMAND"):
                m.d.sync += [
                    item.eq(kept_read.data.command),
                    array.eq(kept_read.data.array),
                    passed.eq(0),
                ]
                m.next = "ASK"

            with m.State("READ-VOLUME"):
                m.next = "FIND-ARRAY"
            with m.State("FIND-ARRAY"):
                m.d.sync += array.eq(self.volume_read.data.array)
                m.next = "ASK"
                # The mapper refuses it.
                with m.If(~self.volume_read.data.valid):
                    m.next = "PASS"
                    with m.If(passed):
                        m.next = "TAKE"
            with m.State("ASK"):
                m.d.comb += turnstile.ask.eq(1)
                with m.If(turnstile.granted):
                    m.next = "PASS"
                    with m.If(passed):
                        m.next = "TAKE"
                with m.If(turnstile.refused):
                    m.d.comb += kept_write.en.eq(1)
                    m.next = "TAKE"
            with m.State("PASS"):
                m.d.comb += self.passed.valid.eq(1)
                with m.If(self.passed.ready):
                    m.next = "TAKE"

            rests = fsm.ongoing("TAKE") & ~calls & ~(self.command.valid & self.command.ready)
            refused = fsm.ongoing("PASS") & ~self.passed.ready
            m.d.comb += self.busy.eq(~(rests | refused) | turnstile.busy)
        return m
