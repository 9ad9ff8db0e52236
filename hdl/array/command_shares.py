"""Host commands wait here for their array's share of what is on its way."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.interface import geometry_read, volume_read
from hdl.array.shares import Shares
from hdl.array.waiting import Waiting
from hdl.config import MAX_DRIVES, OPERATIONS_PER_BLOCK, Config, bits_for_count
from hdl.nvme.interface import HostOpcode, command


def most_blocks(config: Config) -> int:
    """What a command counts for at most."""
    return config.command_blocks * -(-MAX_DRIVES // OPERATIONS_PER_BLOCK)


class CommandShares(wiring.Component):
    """Lets a command pass when its array may have so many blocks on their way; else it waits in a
    queue of its array, and those of other arrays go on.

    A command counts for its blocks, from here until it has completed; in `OPERATIONS_PER_BLOCK`
    operations each: so many times as often for a write that has more copies, and a FLUSH for as
    many as it asks drives. Whatever a command needs behind this, lines for its data, row slots,
    places to be parked, drive operations, there are as many of these as `Config.shared_blocks`
    need. So nobody waits in the mapper, in `hdl.stripe.dispatch.Dispatch` or in
    `hdl.stripe.gather.Gather` for an array that gives nothing back. What a command still does when
    a drive fails it is counted with the command: retries pass at once.

    With a single array commands pass as they come, at no latency.

    Parameters
    ----------
    config
        Sizes; ``shared_blocks`` is not 0.

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
    volume_read, geometry_read
        Tables.
    waiting
        Bit an array: commands wait for its share.
    busy
        Something moves.

    Latency: with several arrays 6 cycles, and 7 from the end of a command to one that waited for
    it; about 12 cycles a command in all.
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
                "geometry_read": Out(geometry_read(config)),
                "waiting": Out(config.arrays),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        most = config.commands * most_blocks(config)
        m.submodules.shares = shares = Shares(
            config=config, total=config.shared_blocks, least=config.command_blocks, most=most
        )
        m.submodules.queues = queues = Waiting(config=config, count=config.commands)
        m.submodules.ends = ends = SyncFIFOBuffered(width=config.slot_bits, depth=config.commands)
        amount_bits = bits_for_count(most_blocks(config) + 1)
        charge = data.StructLayout({"any": 1, "array": config.array_bits, "amount": amount_bits})
        kept = data.StructLayout({"command": command(config), "amount": amount_bits})
        m.submodules.charges = charges = Memory(shape=charge, depth=config.commands, init=[])
        m.submodules.commands = commands = Memory(shape=kept, depth=config.commands, init=[])
        charge_read, charge_write = charges.read_port(), charges.write_port()
        kept_read, kept_write = commands.read_port(), commands.write_port()

        item = Signal(command(config))
        slot = Signal(config.slot_bits)
        array = Signal(config.array_bits)
        amount = Signal(amount_bits)
        counted = Signal()  # it has passed already
        offered = Signal()  # it is being passed, at no latency
        exists = Signal(config.arrays)
        m.d.sync += exists.eq(self.exists)
        m.d.comb += [
            ends.w_en.eq(self.ended),
            ends.w_data.eq(self.ended_slot),
            shares.exists.eq(self.exists),
            shares.array.eq(array),
            shares.amount.eq(amount),
            queues.array.eq(array),
            queues.number.eq(slot),
            queues.retry.eq(shares.give | (exists != self.exists)),
            self.waiting.eq(queues.waiting),
            charge_read.addr.eq(slot),
            charge_write.addr.eq(slot),
            charge_write.data.array.eq(array),
            charge_write.data.amount.eq(amount),
            kept_read.addr.eq(slot),
            kept_write.addr.eq(slot),
            kept_write.data.command.eq(item),
            kept_write.data.amount.eq(amount),
            self.volume_read.address.eq(item.volume),
            self.geometry_read.address.eq(array),
            self.passed.payload.eq(item),
        ]
        waits = queues.waiting.bit_select(array, 1)
        free = (ends.level == 0) & ~queues.calls
        blocks = Signal(range(config.command_blocks + 1))
        weight = Signal(range(-(-MAX_DRIVES // OPERATIONS_PER_BLOCK) + 1))
        copies = self.geometry_read.data.copies
        m.d.comb += [
            blocks.eq(item.blocks + 1),
            weight.eq(
                Mux(
                    item.opcode == HostOpcode.WRITE,
                    (copies + OPERATIONS_PER_BLOCK - 1) // OPERATIONS_PER_BLOCK,
                    1,
                )
            ),
        ]

        def charges_it() -> None:
            m.d.comb += [shares.take.eq(1), charge_write.data.any.eq(1), charge_write.en.eq(1)]

        with m.FSM(name="share") as fsm:
            # Memories keep their contents over a reset.
            with m.State("CLEAR"):
                m.d.comb += charge_write.en.eq(1)
                m.d.sync += slot.eq(slot + 1)
                with m.If((slot == config.commands - 1) & shares.ready):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.sync += offered.eq(self.passed.valid & ~self.passed.ready)
                with m.If(offered | (free & shares.alone)):
                    m.d.comb += [
                        self.passed.valid.eq(self.command.valid),
                        self.passed.payload.eq(self.command.payload),
                        self.command.ready.eq(self.passed.ready),
                    ]
                    with m.If(self.command.valid & self.passed.ready):
                        m.d.sync += counted.eq(1)
                        m.next = "READ-VOLUME"
                with m.Elif(ends.r_rdy):
                    m.d.comb += ends.r_en.eq(1)
                    m.d.sync += slot.eq(ends.r_data)
                    m.next = "READ-END"
                with m.Elif(queues.calls):
                    m.d.comb += queues.advance.eq(1)
                    m.d.sync += array.eq(queues.calling)
                    m.next = "READ-HEAD"
                with m.Elif(free):
                    m.d.comb += self.command.ready.eq(1)
                    with m.If(self.command.valid):
                        m.d.sync += counted.eq(0)
                        m.next = "READ-VOLUME"
                with m.If(self.command.valid & self.command.ready):
                    m.d.sync += [
                        item.eq(self.command.payload),
                        slot.eq(self.command.payload.slot),
                    ]

            # A command, of which nothing is known yet, or which has passed already.
            with m.State("READ-VOLUME"):
                m.next = "FIND-ARRAY"
            with m.State("FIND-ARRAY"):
                m.d.sync += array.eq(self.volume_read.data.array)
                m.next = "READ-GEOMETRY"
                with m.If(charge_read.data.any | ~self.volume_read.data.valid):
                    m.next = "PASS"
                    with m.If(counted):
                        m.next = "TAKE"
            with m.State("READ-GEOMETRY"):
                m.next = "WEIGH"
            with m.State("WEIGH"):
                m.d.sync += amount.eq(blocks * weight)
                with m.If(item.opcode == HostOpcode.FLUSH):
                    m.d.sync += amount.eq(-(-config.ports // OPERATIONS_PER_BLOCK))
                m.next = "JUDGE"
            with m.State("JUDGE"):
                with m.If(counted):
                    charges_it()
                    m.next = "TAKE"
                with m.Elif(shares.fits & ~waits):
                    charges_it()
                    m.next = "PASS"
                with m.Else():
                    m.d.comb += [queues.append.eq(1), kept_write.en.eq(1)]
                    m.next = "TAKE"
            with m.State("PASS"):
                m.d.comb += self.passed.valid.eq(1)
                with m.If(self.passed.ready):
                    m.next = "TAKE"

            # A command has ended.
            with m.State("READ-END"):
                m.next = "LOAD-END"
            with m.State("LOAD-END"):
                m.d.comb += charge_write.en.eq(charge_read.data.any)
                m.d.sync += [
                    array.eq(charge_read.data.array),
                    amount.eq(charge_read.data.amount),
                ]
                m.next = "TAKE"
                with m.If(charge_read.data.any):
                    m.next = "READ-COUNT"
            with m.State("READ-COUNT"):
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += shares.give.eq(1)
                m.next = "TAKE"

            # The first command that waits for an array.
            with m.State("READ-HEAD"):
                m.next = "LOAD-HEAD"
            with m.State("LOAD-HEAD"):
                m.d.sync += slot.eq(queues.head)
                m.next = "READ-COMMAND"
            with m.State("READ-COMMAND"):
                m.next = "LOAD-COMMAND"
            with m.State("LOAD-COMMAND"):
                m.d.sync += [item.eq(kept_read.data.command), amount.eq(kept_read.data.amount)]
                m.next = "JUDGE-HEAD"
            with m.State("JUDGE-HEAD"):
                m.next = "TAKE"
                with m.If(shares.fits):
                    charges_it()
                    m.d.comb += queues.pop.eq(1)
                    m.next = "PASS"
                with m.Else():
                    m.d.comb += queues.refuse.eq(1)

            rests = (
                fsm.ongoing("TAKE")
                & (ends.level == 0)
                & ~queues.calls
                & ~(self.command.valid & self.command.ready)
            )
            refused = fsm.ongoing("PASS") & ~self.passed.ready
            m.d.comb += self.busy.eq(
                ~(rests | refused) | self.ended | (exists != self.exists)
            )
        return m
