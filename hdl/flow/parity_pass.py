"""Parity passes: which lines go through the engine, with which coefficients, to which lines."""

from amaranth.lib import data, enum

from hdl.config import PIECES, Config, bits_for_count
from hdl.kit.optional import optional


class StepKind(enum.Enum, shape=3):
    """A step of a pass."""

    GENERATE = 0
    """Begin: output j is syndrome j, that is the sum of g**(j * role) times each input."""
    RECOVER = 1
    """Begin: output b is the b-th lowest role of ``erased``, from the parities in ``parities``."""
    DATA = 2
    """Input: the block of data role ``role``, in ``line``."""
    PARITY = 3
    """Input: the block of parity ``role`` (0 is P), in ``line``."""
    OUTPUT = 4
    """Output ``role`` goes to ``line`` (which may be one of the inputs); ``last`` ends the pass."""


def piece_field(config: Config) -> dict:
    """A field ``piece``, with ``Config.early_rows`` only: if ``any``, a pass, or what belongs to
    it, is about piece ``number`` of `PIECES` of each line, else about all of it."""
    piece = data.StructLayout({"any": 1, "number": bits_for_count(PIECES)})
    return optional(config.early_rows, {"piece": piece})


def step(config: Config) -> data.StructLayout:
    """One step of a parity pass: a begin, then one or more inputs, then one or more outputs.

    RECOVER: ``erased`` is the mask of lost data roles (as many as bits in ``parities``), and
    ``parities`` the mask of the syndromes used. ``last`` on an OUTPUT: answer with ``index``.
    ``piece`` of the begin: of that of the pass.
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
    """Every output of a pass is in its line; ``error``: the erasures cannot be solved.

    ``nonzero`` (with ``background``): a bit per ``role`` of an OUTPUT: a block that went out there
    is not all zeros. ``piece``: that of the pass.
    """
    background = optional(config.background, {"nonzero": config.parities})
    return data.StructLayout(
        {"index": config.row_slot_bits, "error": 1, **background, **piece_field(config)}
    )
