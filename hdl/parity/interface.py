"""Parity passes: which lines go through the engine, with which coefficients, to which lines."""

from amaranth.lib import data, enum

from hdl.config import Config


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


def step(config: Config) -> data.StructLayout:
    """One step of a parity pass: a begin, then one or more inputs, then one or more outputs.

    RECOVER: ``erased`` is the mask of lost data roles (as many as bits in ``parities``), and
    ``parities`` the mask of the syndromes used. ``last`` on an OUTPUT: answer with ``index``.
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
        }
    )


def pass_done(config: Config) -> data.StructLayout:
    """Every output of a pass is in its line; ``error``: the erasures cannot be solved.

    ``nonzero`` (with ``background``): a bit per ``role`` of an OUTPUT: a block that went out there
    is not all zeros.
    """
    background = {"nonzero": config.parities} if config.background else {}
    return data.StructLayout({"index": config.row_slot_bits, "error": 1, **background})
