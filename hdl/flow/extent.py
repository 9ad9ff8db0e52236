"""The strips that a host command touches, as the mapper finds them."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.recovery import recovery
from hdl.kit.optional import optional


def extent(config: Config) -> data.StructLayout:
    """Consecutive rows of one strip that a host command touches.

    In a FLUSH only ``array`` and ``volume`` have a meaning. With copies, data strips are those
    whose first copy begins in the stripe of ``row``.

    Fields
    ------
    slot, opcode, fua, recover
        Of the host command.
    status
        If it is not SUCCESS, the command fails as a whole and no other field has a meaning.
    array
        The array.
    base
        Member index of the first member of the span.
    shift
        Place in the span of data role 0. Role r is the member with index ``base`` + (``shift`` + r)
        mod width. The roles are data 0.., then P, Q, R, S (DDF_N_CONTINUE: Q, P). With copies, copy
        c of data strip d is at place ``shift`` + d * copies + c. A place past the width wraps to
        the next stripe (RAID 1E).
    index
        Data role, 0...
    ordinal
        Number of the strip in the stripe in the host's order. It equals ``index`` unless data
        ascends.
    row
        First row: the block number on each member, counted from the start of the array's area.
    blocks
        There are ``blocks`` + 1 rows.
    offset
        Index in the host command of the first block.
    final
        The command touches these rows with no later extent. It is exact for a write, whose extents
        are cut where it changes, and always 1 for a read.
    last
        This is the last extent of the command.
    head, tail
        The first block, or the last one, is written in part. Only with `Config.sector_emulation`.
    gathered
        A READ that waits for the other blocks of its rows. `hdl.stripe.dispatch` sets it. Only with
        `Config.gather_reads`.
    volume
        The volume of a FLUSH. Only with `Config.background`.
    """
    sectors = optional(config.sector_emulation, {"head": 1, "tail": 1})
    gathered = optional(config.gather_reads, {"gathered": 1})
    flushed = optional(config.background, {"volume": config.volume_bits})
    return data.StructLayout(
        {
            "slot": config.slot_bits,
            "opcode": HostOpcode,
            "fua": 1,
            "recover": recovery(config),
            "status": Status,
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "index": 5,
            "ordinal": 5,
            "row": BLOCK_NUMBER_BITS,
            "blocks": config.offset_bits,
            "offset": config.offset_bits,
            "final": 1,
            "last": 1,
        }
        | sectors
        | gathered
        | flushed
    )


def expected(config: Config) -> data.StructLayout:
    """A FLUSH of ``slot`` will end ``count`` times, once for each live drive.

    ``array`` is the array that is flushed. It exists only with `Config.intent_chunks`.
    """
    array = optional(config.intent_chunks, {"array": config.array_bits})
    return data.StructLayout({"slot": config.slot_bits, "count": WIDTH_BITS, **array})
