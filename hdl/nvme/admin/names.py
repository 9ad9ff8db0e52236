"""Names that tell this card and its namespaces from all others, made of an identity and a nonce."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table

IDENTITY_BITS = 64
NONCE_BITS = 64

COUNT_BITS = 40
"""Volumes since power-up are counted as wide as the last part of an NGUID is."""

DIGITS = 4
"""Characters of a word."""

CHUNK_BITS = 4 * DIGITS
CHUNKS = IDENTITY_BITS // CHUNK_BITS


def in_digits(chunk: Value) -> Value:
    """Hexadecimal digits of 16 bits as a word of text, the highest first."""
    digits = []
    for position in reversed(range(DIGITS)):
        digit = chunk.word_select(position, 4)
        digits.append(Mux(digit < 10, digit + ord("0"), digit + (ord("a") - 10))[:8])
    return Cat(*digits)


def big_endian(word: Value) -> Value:
    """The bytes of a 32-bit word in reverse."""
    return Cat(word.word_select(byte, 8) for byte in reversed(range(4)))


class Card(wiring.Signature):
    """What tells this card from all others, and this power-up of it from all before.

    Ports
    -----
    identity
        Of the card. It does not change once the controller has been enabled.
    nonce
        Another number each time that power comes back. It may change at any time.
    """

    def __init__(self):
        super().__init__({"identity": Out(IDENTITY_BITS), "nonce": Out(NONCE_BITS)})


class NameRead(wiring.Signature):
    """What a page asks of `Names`. Each answer comes one cycle later.

    Ports
    -----
    volume
        Which volume ``name`` is about.
    chunk
        Which quarter of the identity ``digits`` is about, the highest first.
    digits
        The hexadecimal digits of ``chunk`` as a word of text.
    name
        Words of the volume's NGUID without the OUI: the upper and lower half of the 64 bits, then
        the count's upper byte and lower word.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "volume": Out(config.volume_bits),
                "chunk": Out(range(CHUNKS)),
                "digits": In(32),
                "name": In(32).array(4),
            }
        )


class Names(wiring.Component):
    """Numbers each volume as it is created, and spells what names card and namespaces.

    A volume's name is made of 64 bits and of how many volumes have been created since power-up. The
    64 bits are the card's identity exclusive-or the nonce of this power-up with its bits in
    reverse. They are in reverse so that identities and nonces that both count up from 0 meet only
    after 2**32. The nonce is taken once, when the first volume is created, and kept until power is
    lost. So a name does not change while its volume lives, and no other volume gets it. On this
    card the count or the nonce differs, and on another card the identity does.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    card
        Of which the names are made.
    asked
        A change to the tables that has been taken.
    answered
        How the change has been answered.
    read
        What a page asks.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "card": In(Card()),
                "asked": In(Pulse(manage_request(config))),
                "answered": In(Pulse(manage_response(config))),
                "read": In(NameRead(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.counts = counts = Table(COUNT_BITS, self._config.volumes)
        volume_count = counts.reads[0].data
        creates = Signal()
        count = Signal(COUNT_BITS)
        taken = Signal()
        nonce = Signal(NONCE_BITS, reset_less=True)
        with m.If(self.asked.valid):
            m.d.sync += creates.eq(self.asked.payload.opcode == ManageOpcode.CREATE_VOLUME)
        m.d.comb += [
            counts.write.address.eq(self.answered.payload.index),
            counts.write.data.eq(count),
            counts.write.enable.eq(
                self.answered.valid & creates & (self.answered.payload.status == ManageStatus.DONE)
            ),
            counts.reads[0].address.eq(self.read.volume),
        ]
        with m.If(counts.write.enable):
            m.d.sync += [count.eq(count + 1), taken.eq(1)]
            with m.If(~taken):
                m.d.sync += nonce.eq(self.card.nonce)

        identity = self.card.identity
        chunks = Array(identity.word_select(n, CHUNK_BITS) for n in reversed(range(CHUNKS)))
        mixed = Signal(IDENTITY_BITS)
        m.d.sync += self.read.digits.eq(in_digits(chunks[self.read.chunk]))
        m.d.comb += [
            mixed.eq(identity ^ Cat(reversed(nonce))),
            self.read.name[0].eq(big_endian(mixed[32:])),
            self.read.name[1].eq(big_endian(mixed[:32])),
            self.read.name[2].eq(Cat(Const(0, 24), volume_count[32:])),
            self.read.name[3].eq(big_endian(volume_count[:32])),
        ]
        return m
