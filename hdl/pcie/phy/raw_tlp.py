"""TLP headers as they are on the link (PCIe base specification 2.2), word by word.

A word is a 32-bit header word in the order of the specification's figures: its byte 0 is in bits
31:24. Payload comes in the same way, so that its words are swapped bytewise.
"""

from amaranth.hdl import Cat, Const, Mux, Value
from amaranth.lib import data, enum

from hdl.pcie.dma.rotate import words_of

BYTES_OF_WORD = 4


class Type(enum.Enum, shape=5):
    """Type field of the TLPs that an endpoint receives or sends."""

    MEMORY = 0b00000
    LOCKED_READ = 0b00001
    IO = 0b00010
    COMPLETION = 0b01010
    LOCKED_COMPLETION = 0b01011
    FETCH_ADD = 0b01100
    SWAP = 0b01101
    COMPARE_SWAP = 0b01110


class Word0(data.Struct):
    """The first word of every header. ``four``: the header has four words, not three."""

    length: 10
    address_type: 2
    attributes: 2
    poisoned: 1
    digest: 1
    hints: 1
    reserved_0: 1
    id_ordering: 1
    reserved_1: 1
    traffic_class: 3
    reserved_2: 1
    kind: Type
    four: 1
    has_data: 1
    prefix: 1


class RequestWord1(data.Struct):
    """The second word of a request."""

    first_enable: 4
    last_enable: 4
    tag: 8
    requester_id: 16


class CompletionWord1(data.Struct):
    """The second word of a completion."""

    byte_count: 12
    modified: 1
    status: 3
    completer_id: 16


class CompletionWord2(data.Struct):
    """The third word of a completion."""

    lower_address: 7
    reserved: 1
    tag: 8
    requester_id: 16


def swapped(beat: Value) -> Value:
    """A beat of payload with the bytes of every word in the other order."""
    return Cat(Cat(words_of(word, 8)[::-1]) for word in words_of(beat))


def count(field: Value, most: int) -> Value:
    """A count whose code 0 stands for ``most``: lengths (1024 words), byte counts (4096)."""
    return Mux(field == 0, Const(most), field)
