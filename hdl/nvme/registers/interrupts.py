"""MSI-X: vector table, pending bits, and the messages (PCIe base specification 6.1.4)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.post import Messages, post
from hdl.kit.pick import choose, following
from hdl.nvme.records import assign, queue_bits
from hdl.nvme.registers.registers import VectorAccess

PENDING_WORD = 64
MASK_BYTE = 4
"""Byte of a table entry's second half that holds the mask bit of Vector Control."""


class Interrupts(wiring.Component):
    """Turns raised vectors into messages.

    A raised vector becomes a pending bit. The message leaves, and the bit is cleared, as soon as
    MSI-X is enabled and neither the function nor the vector is masked. A vector that is raised
    again before its message has been made up shares that message. Waiting vectors take turns.

    A vector stays pending while MSI-X is disabled. A vector is raised before its completion has
    landed in host memory. So a host that enables MSI-X and then looks at its queues can come too
    early for the completion, and needs the message.

    One message is under way at a time. If its vector is masked meanwhile, even for a moment, it is
    withheld to the last: it is dropped where requests leave, and its vector is pending again.

    Parameters
    ----------
    config
        Sizes: ``queue_pairs`` + 1 vectors.

    Ports
    -----
    raised
        Bit a vector: it is raised. It is never refused.
    enable
        MSI-X Enable.
    mask
        Function Mask.
    clear
        Pending vectors are forgotten (controller reset).
    reset
        Every vector becomes masked (function level reset).
    vectors
        Host access to table and pending bits, one a cycle.
    post
        Messages.
    messages
        What became of each.
    leaving
        A message is on its way to ``post``, or will be in the next cycle.
    busy
        Something moves without anybody else being waited for.

    Latency: 4 cycles from ``raised`` to ``post``, the next message 3 cycles after one has left.
    """

    def __init__(self, *, config: Config):
        count = config.queue_pairs + 1
        super().__init__(
            {
                "raised": In(count),
                "enable": In(1),
                "mask": In(1),
                "clear": In(1),
                "reset": In(1),
                "vectors": In(VectorAccess(config)),
                "post": Out(stream.Signature(post())),
                "messages": Out(Messages()),
                "leaving": Out(1),
                "busy": Out(1),
            }
        )

        # Vector Control is the mask bit only. It is kept outside the memory.
        self._table = memory.Memory(shape=64, depth=2 * count, init=[])
        self._host_write = self._table.write_port(granularity=8)
        self._host_read, self._read = self._table.read_port(), self._table.read_port()
        self._masked = Signal(count, init=(1 << count) - 1)

        # Bits a vector.
        self._count = count
        self._pending = Signal(count)
        self._returning = Signal(count)  # its message is under way, and will be dropped
        self._ready = Signal(count)  # it may be chosen
        self._begun = Signal(count)  # its message begins
        self._turn = Signal(range(count))

        # The vector whose message is under way.
        self._chosen = Signal(queue_bits(config))
        self._under_way = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.table = self._table
        self._serve_host(m)
        self._withhold(m)
        self._follow_pending(m)
        ready = self._ready
        m.d.comb += ready.eq(
            self._pending & ~self._masked & (self.enable & ~self.mask).replicate(self._count)
        )
        lowest = choose(m, ready, self._turn)
        with m.FSM(name="interrupt") as fsm:
            self._choose(m, lowest)
            self._make_up(m)
            self._send(m)
            waits = (
                (fsm.ongoing("CHOOSE") & ~ready.any())
                | (fsm.ongoing("POST") & ~self.post.ready)
                | (fsm.ongoing("LEAVE") & ~self.messages.left & ~self.messages.dropped)
            )
            m.d.comb += [
                self.leaving.eq(~fsm.ongoing("CHOOSE") | ready.any()),
                self.busy.eq(~waits | self.raised.any()),
            ]
        return m

    def _serve_host(self, m: Module) -> None:
        """The host's accesses to the table and to pending bits. A vector whose message will be
        dropped is pending as well."""
        host, masked = self.vectors, self._masked
        write, read = self._host_write, self._host_read
        host_vector = host.address[1:]
        pending_half = Signal()
        control_half = Signal()
        host_word = Signal()
        host_mask = Signal()
        m.d.comb += [
            write.addr.eq(host.address),
            write.data.eq(host.write_data),
            write.en.eq(host.write_enable),
            read.addr.eq(host.address),
        ]
        m.d.sync += [
            control_half.eq(host.address[0]),
            pending_half.eq(host.pending),
            host_word.eq(host.address[0]),
            host_mask.eq(masked.bit_select(host_vector, 1)),
        ]
        words = Cat(self._pending | self._returning, Const(0, 2 * PENDING_WORD - self._count))
        with m.If(pending_half):
            m.d.comb += host.read_data.eq(words.word_select(host_word, PENDING_WORD))
        with m.Elif(control_half):
            m.d.comb += host.read_data.eq(Cat(read.data[:32], host_mask))
        with m.Else():
            m.d.comb += host.read_data.eq(read.data)
        with m.If(host.address[0] & host.write_enable[MASK_BYTE]):
            m.d.sync += masked.bit_select(host_vector, 1).eq(host.write_data[8 * MASK_BYTE])
        with m.If(self.reset):
            m.d.sync += masked.eq(~0)

    def _withhold(self, m: Module) -> None:
        """The message under way is withheld once its vector may not be told any more."""
        chosen = self._chosen
        withholds = self.messages.withhold
        withheld = Signal()
        permitted = (
            self.enable & ~self.mask & ~self.clear & ~self._masked.bit_select(chosen, 1)
        )
        m.d.comb += [
            withholds.eq(withheld | ~permitted),
            self._returning.eq(Mux(self._under_way & withholds, 1 << chosen, 0)),
        ]
        m.d.sync += withheld.eq(self._under_way & withholds)

    def _follow_pending(self, m: Module) -> None:
        """Vectors become pending when they are raised, and when their message is dropped."""
        dropped = Mux(self.messages.dropped, 1 << self._chosen, 0)
        m.d.sync += self._pending.eq((self._pending & ~self._begun) | self.raised | dropped)
        with m.If(self.clear):
            m.d.sync += self._pending.eq(0)

    def _choose(self, m: Module, lowest: Value) -> None:
        """The state CHOOSE: whose turn it is."""
        with m.State("CHOOSE"):
            m.d.comb += self._read.addr.eq(Cat(Const(0, 1), lowest))
            m.d.sync += self._chosen.eq(lowest)
            with m.If(self._ready.any()):
                m.d.sync += self._turn.eq(following(lowest, self._count - 1))
                m.next = "READ"

    def _make_up(self, m: Module) -> None:
        """The states READ, in which address and pending bit are taken, and LOAD, for the data.

        The pending bit is not taken at the post: what is raised from now on needs a new message.
        """
        chosen, read, message = self._chosen, self._read, self.post.payload
        with m.State("READ"):
            m.d.comb += [
                self._under_way.eq(1),
                self._begun.eq(1 << chosen),
                read.addr.eq(Cat(Const(1, 1), chosen)),
            ]
            m.d.sync += assign(message, address=read.data, dwords=1, message=1)
            m.next = "LOAD"

        with m.State("LOAD"):
            m.d.comb += self._under_way.eq(1)
            m.d.sync += message.data.eq(read.data[:32])
            m.next = "POST"

    def _send(self, m: Module) -> None:
        """The states POST and LEAVE: the message is sent, and leaves or is dropped."""
        with m.State("POST"):
            m.d.comb += [self.post.valid.eq(1), self._under_way.eq(1)]
            with m.If(self.post.ready):
                m.next = "LEAVE"

        with m.State("LEAVE"):
            m.d.comb += self._under_way.eq(1)
            with m.If(self.messages.left | self.messages.dropped):
                m.next = "CHOOSE"
