"""Arithmetic in GF(2**n) by tables of logarithms, and linear equations over it, in plain Python."""

from functools import cached_property

from hdl.parity.field import RAID_FIELD, Field


class SingularMatrixError(ValueError):
    """The equations have no single solution."""


class Gf:
    """The field that ``field`` describes, for elements and for blocks of bytes.

    Parameters
    ----------
    field
        Polynomial and generator. The generator must be primitive.
    """

    def __init__(self, field: Field = RAID_FIELD):
        self.field = field
        self.order = (1 << field.width) - 1
        self.exp: list[int] = []
        self.log: dict[int, int] = {}
        # Powers of x by long division, then those of the generator from them.
        element = 1
        for exponent in range(self.order):
            if element in self.log:
                raise ValueError(f"generator {field.generator:#x} is not primitive")
            self.exp.append(element)
            self.log[element] = exponent
            element = self._long_product(element, field.generator)

    def _long_product(self, a: int, b: int) -> int:
        total = 0
        for shift in range(b.bit_length()):
            if b >> shift & 1:
                total ^= a << shift
        while total.bit_length() > self.field.width:
            total ^= self.field.polynomial << (total.bit_length() - self.field.width - 1)
        return total

    def mul(self, a: int, b: int) -> int:
        """``a`` times ``b``."""
        if a == 0 or b == 0:
            return 0
        return self.exp[(self.log[a] + self.log[b]) % self.order]

    def inv(self, a: int) -> int:
        """1 / ``a``."""
        if a == 0:
            raise ZeroDivisionError("0 has no inverse")
        return self.exp[-self.log[a] % self.order]

    def power(self, exponent: int) -> int:
        """The generator to ``exponent``, which may be negative."""
        return self.exp[exponent % self.order]

    @cached_property
    def _translations(self) -> list[bytes]:
        if self.field.width != 8:
            raise ValueError("blocks are of bytes: the field must have 256 elements")
        return [bytes(self.mul(c, value) for value in range(256)) for c in range(256)]

    def scale(self, coefficient: int, block: bytes) -> bytes:
        """Every byte of ``block`` times ``coefficient``."""
        return bytes(block).translate(self._translations[coefficient])

    def add(self, a: bytes, b: bytes) -> bytes:
        """The sum (XOR) of two blocks of one length."""
        if len(a) != len(b):
            raise ValueError(f"blocks of {len(a)} and {len(b)} bytes")
        total = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
        return total.to_bytes(len(a), "little")

    def weigh(self, terms: list[tuple[int, bytes]]) -> bytes:
        """The sum of coefficient times block over ``terms`` (at least one)."""
        total = bytes(len(terms[0][1]))
        for coefficient, block in terms:
            total = self.add(total, self.scale(coefficient, block))
        return total

    def invert(self, matrix: list[list[int]]) -> list[list[int]]:
        """The inverse of a square matrix, by elimination with a search for pivots.

        Raises
        ------
        SingularMatrixError
            There is none.
        """
        size = len(matrix)
        work = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
        for column in range(size):
            pivot = next((r for r in range(column, size) if work[r][column]), None)
            if pivot is None:
                raise SingularMatrixError("the matrix is singular")
            work[column], work[pivot] = work[pivot], work[column]
            factor = self.inv(work[column][column])
            work[column] = [self.mul(factor, value) for value in work[column]]
            for r in range(size):
                factor = work[r][column]
                if r != column and factor:
                    work[r] = [
                        value ^ self.mul(factor, pivot_value)
                        for value, pivot_value in zip(work[r], work[column], strict=True)
                    ]
        return [row[size:] for row in work]

    def determinant(self, matrix: list[list[int]]) -> int:
        """The determinant by expansion. It is slow, and shares nothing with `invert`."""
        if not matrix:
            return 1
        total = 0
        for column, value in enumerate(matrix[0]):
            minor = [row[:column] + row[column + 1 :] for row in matrix[1:]]
            total ^= self.mul(value, self.determinant(minor))
        return total


RAID = Gf()
"""The field of the parity equations."""
