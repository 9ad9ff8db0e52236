"""Names that tell this card and its namespaces from all others, made of an identity and a nonce."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import MadeChange, ManageOpcode, ManageStatus
from hdl.flow.volume_facts import COUNT_BITS, OWN_BITS, volume_name
from hdl.kit.optional import optional
from hdl.kit.table import Table, TableRead

IDENTITY_BITS = 64
NONCE_BITS = 64

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


def _stored(config: Config) -> data.StructLayout:
    """What is kept of a volume's name. Unless it can be from another power-up, ``own`` is that of
    all."""
    own = optional(config.metadata, {"own": OWN_BITS})
    return data.StructLayout({"count": COUNT_BITS} | own)


class Names(wiring.Component):
    """Names each volume as it is created, and spells what names card and namespaces.

    A volume's name is made of 64 bits and of how many volumes have been created since power-up. The
    64 bits are the card's identity exclusive-or the nonce of this power-up with its bits in
    reverse. They are in reverse so that identities and nonces that both count up from 0 meet only
    after 2**32. The nonce is taken once, when the first volume is created, and kept until power is
    lost. So a name does not change while its volume lives, and no other volume gets it. On this
    card the count or the nonce differs, and on another card the identity does. A volume that is
    brought up has the name that it has had.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    card
        Of which the names are made.
    made
        Changes to the tables.
    read
        What a page asks.
    stored_read
        The names of volumes, to be stored. Of no use without `Config.metadata`.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "card": In(Card()),
                "made": In(MadeChange(config)),
                "read": In(NameRead(config)),
                "stored_read": In(TableRead(config.volume_bits, volume_name())),
            }
        )

    def elaborate(self, platform) -> Module:
        config, asked, answered = self._config, self.made.asked, self.made.answered
        m = Module()
        m.submodules.counts = names = Table(
            _stored(config), config.volumes, reads=1 + config.metadata
        )
        volume = names.reads[0].data
        creates = Signal()
        placed = Signal()
        given = Signal(volume_name())  # the name of a volume that is brought up
        count = Signal(COUNT_BITS)
        taken = Signal()
        nonce = Signal(NONCE_BITS, reset_less=True)
        with m.If(asked.valid):
            m.d.sync += [
                creates.eq(asked.payload.opcode == ManageOpcode.CREATE_VOLUME),
                placed.eq(asked.payload.placed),
                given.eq(asked.payload.name),
            ]
        own = self._own(Mux(taken, nonce, self.card.nonce))
        m.d.comb += [
            names.write.address.eq(answered.payload.index),
            names.write.data.count.eq(Mux(placed, given.count, count)),
            names.write.data.own.eq(Mux(placed, given.own, own)),
            names.write.enable.eq(
                answered.valid & creates & (answered.payload.status == ManageStatus.DONE)
            ),
            names.reads[0].address.eq(self.read.volume),
        ]
        with m.If(names.write.enable & ~placed):
            m.d.sync += [count.eq(count + 1), taken.eq(1)]
            with m.If(~taken):
                m.d.sync += nonce.eq(self.card.nonce)
        if config.metadata:
            m.d.comb += [
                names.reads[1].address.eq(self.stored_read.address),
                self.stored_read.data.own.eq(names.reads[1].data.own),
                self.stored_read.data.count.eq(names.reads[1].data.count),
            ]

        identity = self.card.identity
        chunks = Array(identity.word_select(n, CHUNK_BITS) for n in reversed(range(CHUNKS)))
        mixed = Signal(IDENTITY_BITS)
        m.d.sync += self.read.digits.eq(in_digits(chunks[self.read.chunk]))
        m.d.comb += [
            mixed.eq(volume.own if config.metadata else self._own(nonce)),
            self.read.name[0].eq(big_endian(mixed[32:])),
            self.read.name[1].eq(big_endian(mixed[:32])),
            self.read.name[2].eq(Cat(Const(0, 24), volume.count[32:])),
            self.read.name[3].eq(big_endian(volume.count[:32])),
        ]
        return m

    def _own(self, nonce: Value) -> Value:
        """What is the card's own, and this power-up's, in the name of a new volume."""
        return self.card.identity ^ Cat(reversed(nonce))
