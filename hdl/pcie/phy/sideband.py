"""Sideband signals (``tuser``) of the UltraScale+ PCIe block's streams, by data width (PG213).

Interfaces of 512 bits can carry two packets a beat and so have most fields twice; those named
``.._1`` belong to the second one and are not used, as only RC straddles (`hdl.pcie.phy.straddle`).
"""

from amaranth.lib import data

WIDE = 512
"""Width from which on the wider layouts apply."""


class RequesterRequestUser(data.Struct):
    """RQ, 64 to 256 bits. Parity is not used."""

    first_enable: 4
    last_enable: 4
    address_offset: 3
    discontinue: 1
    hint: 12
    sequence: 4
    parity: 32
    sequence_high: 2


class PacketEnd(data.Struct):
    """Of RC, 64 to 256 bits: a packet ends in the beat, with word ``word``."""

    valid: 1
    word: 3


class RequesterCompletionUser(data.Struct):
    """RC, 64 to 256 bits."""

    byte_enable: 32
    start: 2
    end: data.ArrayLayout(PacketEnd, 2)
    discontinue: 1
    parity: 32


class CompleterRequestUser(data.Struct):
    """CQ, 64 to 256 bits."""

    first_enable: 4
    last_enable: 4
    byte_enable: 32
    start: 1
    discontinue: 1
    hint_present: 1
    hint_type: 2
    hint_tag: 8
    parity: 32
    reserved: 3


class CompleterCompletionUser(data.Struct):
    """CC, 64 to 256 bits."""

    discontinue: 1
    parity: 32


class WideRequesterRequestUser(data.Struct):
    """RQ, 512 bits."""

    first_enable: 4
    first_enable_1: 4
    last_enable: 4
    last_enable_1: 4
    address_offset: 4
    start: 6
    end: 10
    discontinue: 1
    hint: 24
    sequence: 4
    sequence_high: 2
    sequence_1: 6
    parity: 64


class WideRequesterCompletionUser(data.Struct):
    """RC, 512 bits: up to four packets start, and four end, each with its place.

    ``start_place``: in units of 4 words. ``end_word``: the last word.
    """

    byte_enable: 64
    start: 4
    start_place: data.ArrayLayout(2, 4)
    end: 4
    end_word: data.ArrayLayout(4, 4)
    discontinue: 1
    parity: 64


class WideCompleterRequestUser(data.Struct):
    """CQ, 512 bits."""

    first_enable: 4
    first_enable_1: 4
    last_enable: 4
    last_enable_1: 4
    byte_enable: 64
    start: 6
    end: 10
    discontinue: 1
    hint_present: 1
    hint_present_1: 1
    hint_type: 2
    hint_type_1: 2
    hint_tag: 8
    hint_tag_1: 8
    parity: 64


class WideCompleterCompletionUser(data.Struct):
    """CC, 512 bits."""

    start: 6
    end: 10
    discontinue: 1
    parity: 64


_NARROW = {
    "rq": RequesterRequestUser,
    "rc": RequesterCompletionUser,
    "cq": CompleterRequestUser,
    "cc": CompleterCompletionUser,
}
_WIDE = {
    "rq": WideRequesterRequestUser,
    "rc": WideRequesterCompletionUser,
    "cq": WideCompleterRequestUser,
    "cc": WideCompleterCompletionUser,
}


def user_shape(prefix: str, width: int) -> type[data.Struct]:
    """The layout of ``<prefix>_tuser`` of an interface of ``width`` bits."""
    return (_WIDE if width >= WIDE else _NARROW)[prefix]
