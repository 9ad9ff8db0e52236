"""MSI-X: vector table, pending bits, and the messages (PCIe base specification 6.1.4)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
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

    A raised vector becomes a pending bit; the message leaves, and the bit is cleared, as soon as
    MSI-X is enabled and neither the function nor the vector is masked. A vector raised again
    before its message has been made up shares that message. Vectors raised while MSI-X is disabled
    are lost. Waiting vectors take turns.

    One message is under way at a time. If its vector is masked meanwhile, even for a moment, it is
    withheld to the last: where requests leave it is dropped, and its vector is pending again.

    Parameters
    ----------
    config
        Sizes: ``queue_pairs`` + 1 vectors.

    Ports
    -----
    raised
        Vectors raised, a bit each; never refused.
    enable, mask
        MSI-X Enable and Function Mask.
    clear
        Forgets pending vectors (controller reset).
    reset
        Masks every vector (function level reset).
    vectors
        Host access to table and pending bits, one a cycle.
    post, messages
        Messages, and what became of each.
    leaving
        A message is on its way to ``post``, or will be in the next cycle.

    Latency 4 cycles from ``raised`` to ``post``, the next message 3 cycles after one has left.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "raised": In(config.queue_pairs + 1),
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        count = config.queue_pairs + 1
        m.submodules.table = table = memory.Memory(shape=64, depth=2 * count, init=[])
        host_write = table.write_port(granularity=8)
        host_read = table.read_port()
        read = table.read_port()

        pending = Signal(count)
        masked = Signal(count, init=(1 << count) - 1)
        turn = Signal(range(count))
        chosen = Signal(queue_bits(config))

        # Host side. Vector Control is the mask bit only, kept outside the memory.
        host = self.vectors
        host_vector = host.address[1:]
        control_half = Signal()
        pending_half = Signal()
        host_word = Signal()
        host_mask = Signal()
        m.d.comb += [
            host_write.addr.eq(host.address),
            host_write.data.eq(host.write_data),
            host_write.en.eq(host.write_enable),
            host_read.addr.eq(host.address),
        ]
        m.d.sync += [
            control_half.eq(host.address[0]),
            pending_half.eq(host.pending),
            host_word.eq(host.address[0]),
            host_mask.eq(masked.bit_select(host_vector, 1)),
        ]
        # One that will be dropped is pending as well.
        returning = Signal(count)
        words = Cat(pending | returning, Const(0, 2 * PENDING_WORD - count))
        with m.If(pending_half):
            m.d.comb += host.read_data.eq(words.word_select(host_word, PENDING_WORD))
        with m.Elif(control_half):
            m.d.comb += host.read_data.eq(Cat(host_read.data[:32], host_mask))
        with m.Else():
            m.d.comb += host.read_data.eq(host_read.data)
        with m.If(host.address[0] & host.write_enable[MASK_BYTE]):
            m.d.sync += masked.bit_select(host_vector, 1).eq(host.write_data[8 * MASK_BYTE])
        with m.If(self.reset):
            m.d.sync += masked.eq(~0)

        ready = Signal(count)
        m.d.comb += ready.eq(pending & ~masked & (self.enable & ~self.mask).replicate(count))
        lowest = choose(m, ready, turn)

        set_bits = Signal(count)
        clear_bits = Signal(count)
        with m.If(self.enable):
            m.d.comb += set_bits.eq(self.raised)
        under_way = Signal()
        withheld = Signal()
        permitted = self.enable & ~self.mask & ~self.clear & ~masked.bit_select(chosen, 1)
        m.d.comb += [
            self.messages.withhold.eq(withheld | ~permitted),
            returning.eq(Mux(under_way & self.messages.withhold, 1 << chosen, 0)),
        ]
        m.d.sync += [
            withheld.eq(under_way & self.messages.withhold),
            pending.eq(
                (pending & ~clear_bits) | set_bits | Mux(self.messages.dropped, 1 << chosen, 0)
            ),
        ]
        with m.If(self.clear | ~self.enable):
            m.d.sync += pending.eq(0)

        with m.FSM(name="interrupt") as fsm:
            with m.State("CHOOSE"):
                m.d.comb += read.addr.eq(Cat(Const(0, 1), lowest))
                m.d.sync += chosen.eq(lowest)
                with m.If(ready.any()):
                    m.d.sync += turn.eq(following(lowest, count - 1))
                    m.next = "READ"

            with m.State("READ"):
                # Taken here, not at the post: what is raised from now on needs a new message.
                m.d.comb += [
                    under_way.eq(1),
                    clear_bits.eq(1 << chosen),
                    read.addr.eq(Cat(Const(1, 1), chosen)),
                ]
                m.d.sync += assign(self.post.payload, address=read.data, dwords=1, message=1)
                m.next = "LOAD"

            with m.State("LOAD"):
                m.d.comb += under_way.eq(1)
                m.d.sync += self.post.payload.data.eq(read.data[:32])
                m.next = "POST"

            with m.State("POST"):
                m.d.comb += [self.post.valid.eq(1), under_way.eq(1)]
                with m.If(self.post.ready):
                    m.next = "LEAVE"

            with m.State("LEAVE"):
                m.d.comb += under_way.eq(1)
                with m.If(self.messages.left | self.messages.dropped):
                    m.next = "CHOOSE"

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
