"""What the mapper says of a host command: the strips that it touches."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.recovery import recovery
from hdl.kit.optional import optional


def extent(config: Config) -> data.StructLayout:
    """Consecutive rows of one strip that a host command touches.

    ``status`` other than SUCCESS: the command fails as a whole, nothing else holds. FLUSH: only
    ``array`` and ``volume`` hold (the latter not there without `Config.background`).
    ``row``: first row (block number on each member, counted from the start of
    the array's area); ``blocks`` + 1 rows. ``base``: position of the span's first member.
    ``shift``: place in the span of data role 0: role r is at ``base`` + (``shift`` + r) mod width,
    roles being data 0.., then P, Q, R, S (DDF_N_CONTINUE: Q, P); with copies, copy c of data d at
    place ``shift`` + d * copies + c, which past the width wraps to the next stripe (RAID 1E).
    ``index``: data role, 0.. ; ``ordinal``: which strip of the stripe in the host's order, equal to
    ``index`` unless data ascends; ``offset``: index in the host command of the first block.
    ``final``: the command touches these rows with no later extent (exact for a write, whose
    extents are cut where it changes; 1 for a read). ``last``: last extent of it.
    With copies, ``index`` counts the strips whose first copy begins in the stripe of ``row``.
    ``head``, ``tail``: the first block, the last one, is written in part (not there without
    `Config.sector_emulation`). ``gathered``: a READ that waits for the other blocks of its rows;
    `hdl.stripe.dispatch` says so, and nobody before it (not there without `Config.gather_reads`).
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

    ``array``: which (not there without `Config.intent_chunks`).
    """
    array = optional(config.intent_chunks, {"array": config.array_bits})
    return data.StructLayout({"slot": config.slot_bits, "count": WIDTH_BITS, **array})
