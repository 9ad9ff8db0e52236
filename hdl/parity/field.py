"""The Galois field of the parity equations: parameters only, shared by hardware and software."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field GF(2**width) and the element whose powers are the coefficients of the syndromes.

    From one such object `hdl.parity.galois` builds hardware and `sim.golden.gf` tables in software,
    each in its own way.

    Parameters
    ----------
    polynomial
        Irreducible polynomial, bit n for x**n, with the leading term.
    generator
        Element of full multiplicative order; g**(j * i) weighs data role i in syndrome j.
    """

    polynomial: int
    generator: int

    def __post_init__(self) -> None:
        if self.polynomial < 0b111:
            raise ValueError(f"polynomial must have degree 2 or more, not {self.polynomial:#x}")
        if not 2 <= self.generator < 1 << self.width:
            raise ValueError(f"generator must be 2..{(1 << self.width) - 1}, not {self.generator}")

    @property
    def width(self) -> int:
        """Bits of an element."""
        return self.polynomial.bit_length() - 1


RAID_FIELD = Field(polynomial=0x11D, generator=2)
"""The field of Linux md RAID 6 and of Intel ISA-L (H. P. Anvin, The mathematics of RAID-6)."""

ELEMENT_BITS = RAID_FIELD.width

MAX_PARITIES = 4
"""Syndromes that the step format can name: P, Q, R, S."""
