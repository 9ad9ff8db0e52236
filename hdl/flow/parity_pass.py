"""Parity passes: the lines that go through the engine, their coefficients, and the lines of the
results."""

from amaranth.lib import data, enum

from hdl.config import PIECES, Config, bits_for_count
from hdl.kit.optional import optional


class StepKind(enum.Enum, shape=3):
    """A step of a pass."""

    GENERATE = 0
    """Begin. Output j is syndrome j, the sum of g**(j * role) times each input."""
    RECOVER = 1
    """Begin. Output b is the b-th lowest role of ``erased``, from the parities in ``parities``."""
    DATA = 2
    """Input. The block of data role ``role`` is in ``line``."""
    PARITY = 3
    """Input. The block of parity ``role`` (0 is P) is in ``line``."""
    OUTPUT = 4
    """Output ``role`` goes to ``line``, which may be one of the inputs. ``last`` ends the pass."""


def piece_field(config: Config) -> dict:
    """A field ``piece``, only with ``Config.early_rows``.

    If ``any``, a pass is about piece ``number`` of `PIECES` of each line. Otherwise it is about
    whole lines.
    """
    piece = data.StructLayout({"any": 1, "number": bits_for_count(PIECES)})
    return optional(config.early_rows, {"piece": piece})


def step(config: Config) -> data.StructLayout:
    """One step of a parity pass. A pass is a begin, then one or more inputs, then one or more
    outputs.

    Fields
    ------
    kind, role, line
        As `StepKind` says.
    erased
        Of RECOVER: the mask of lost data roles. It has as many bits as ``parities``.
    parities
        Of RECOVER: the mask of the syndromes that are used.
    last, index
        With ``last`` on an OUTPUT the pass is answered with ``index``.
    piece
        The piece in the begin step is that of the pass.
    """
    return data.StructLayout(
        {
            "kind": StepKind,
            "role": 5,
            "line": config.line_bits,
            "erased": 32,
            "parities": 4,
            "last": 1,
            "index": config.row_slot_bits,
            **piece_field(config),
        }
    )


def pass_done(config: Config) -> data.StructLayout:
    """Every output of a pass is in its line. With ``error`` the erasures cannot be solved.

    ``nonzero`` (with ``background``) has a bit for each ``role`` of an OUTPUT. The bit is 1 if the
    block that went out there is not all zeros. ``piece`` is that of the pass.
    """
    background = optional(config.background, {"nonzero": config.parities})
    return data.StructLayout(
        {"index": config.row_slot_bits, "error": 1, **background, **piece_field(config)}
    )
