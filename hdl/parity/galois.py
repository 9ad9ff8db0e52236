"""Arithmetic in GF(2**8) as hardware: products by a constant, by a run-time coefficient, of words.

A product by a coefficient is linear over bits. Its bit matrix (column k is the coefficient times
x**k) is worked out once for each block of data and then applied to every byte of every beat: eight
AND gates and one XOR tree a bit, no table, no logarithm.
"""

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike

from hdl.parity.field import Field

CHUNK_BITS = 64
"""Words are multiplied in pieces of this size: simulators handle 64 bits in one machine word."""


def times_x(field: Field, element: int) -> int:
    """``element`` times x, in software (for tables that are built at elaboration)."""
    shifted = element << 1
    return shifted ^ field.polynomial if shifted >> field.width else shifted


def product(field: Field, a: int, b: int) -> int:
    """``a`` times ``b``, in software, by shifting and adding."""
    result = 0
    for bit in range(field.width):
        if b >> bit & 1:
            result ^= a
        a = times_x(field, a)
    return result


def power(field: Field, exponent: int) -> int:
    """The generator to a power, in software."""
    result = 1
    for _ in range(exponent):
        result = product(field, result, field.generator)
    return result


def inverse_table(field: Field) -> list[int]:
    """The inverse of every element; 0 for 0. Contents of a ROM."""
    order = (1 << field.width) - 1
    powers = [1]
    for _ in range(order - 1):
        powers.append(product(field, powers[-1], field.generator))
    table = [0] * (order + 1)
    for exponent, element in enumerate(powers):
        table[element] = powers[-exponent % order]
    return table


def power_table(field: Field, *, roles: int, parities: int) -> list[list[int]]:
    """Row r, column j: g**(j * r), the weight of data role r in syndrome j. Contents of a ROM."""
    return [[power(field, j * role) for j in range(parities)] for role in range(roles)]


def multiply_by_x(field: Field, element: ValueLike) -> Value:
    """``element`` times x: a shift, and the polynomial where a one falls out. Combinational."""
    element = Value.cast(element)
    low = field.polynomial & ((1 << field.width) - 1)
    bits = []
    for bit in range(field.width):
        terms = [element[bit - 1]] if bit else []
        if low >> bit & 1:
            terms.append(element[-1])
        bits.append(_sum(terms))
    return Cat(*bits)


def multiply_by_constant(field: Field, element: ValueLike, constant: int) -> Value:
    """``element`` times ``constant``. Combinational, at most ``field.width`` bits a XOR."""
    element = Value.cast(element)
    columns = [product(field, constant, 1 << bit) for bit in range(field.width)]
    return Cat(
        _sum([element[k] for k, column in enumerate(columns) if column >> bit & 1])
        for bit in range(field.width)
    )


def bit_matrix(field: Field, coefficient: ValueLike) -> list[Value]:
    """The bit matrix of a product: column k is ``coefficient`` times x**k. Combinational."""
    return [multiply_by_constant(field, coefficient, 1 << k) for k in range(field.width)]


def multiply(field: Field, a: ValueLike, b: ValueLike) -> Value:
    """``a`` times ``b``, both changing. Combinational."""
    b = Value.cast(b)
    return _sum(
        [column & b[k].replicate(field.width) for k, column in enumerate(bit_matrix(field, a))]
    )


def multiply_word(
    m: Module, field: Field, word: Value, matrices: Sequence[Sequence[Value]], *, name: str
) -> list[Value]:
    """Every element of ``word`` times each of the coefficients whose bit matrices are given.

    Combinational: an AND with every column and a XOR of eight. ``word`` is a whole number of
    elements, and an element a power of two of bits. Returns one word a matrix.
    """
    width = field.width
    if width & (width - 1):
        raise ValueError(f"elements must have a power of two of bits, not {width}")
    if len(word) % width:
        raise ValueError(f"a word must be a multiple of {width} bits, not {len(word)}")
    pieces: list[list[Value]] = [[] for _ in matrices]
    for start in range(0, len(word), CHUNK_BITS):
        size = min(CHUNK_BITS, len(word) - start)
        lanes = size // width
        ones = Const(sum(1 << (lane * width) for lane in range(lanes)), size)
        chunk = Signal(size, name=f"{name}_{start}")
        m.d.comb += chunk.eq(word[start : start + size])
        spread = []
        for bit in range(width):
            # Bit `bit` of each element, copied to all bits of that element.
            mask = Signal(size, name=f"{name}_{start}_bit_{bit}")
            value = (chunk >> bit) & ones
            step = 1
            while step < width:
                wider = Signal(size, name=f"{name}_{start}_bit_{bit}_by_{step}")
                m.d.comb += wider.eq(value | Cat(Const(0, step), value[: size - step]))
                value = wider
                step *= 2
            m.d.comb += mask.eq(value)
            spread.append(mask)
        for piece, columns in zip(pieces, matrices, strict=True):
            terms = [
                mask & column.replicate(lanes) for mask, column in zip(spread, columns, strict=True)
            ]
            piece.append(_sum(terms))
    return [Cat(*piece) for piece in pieces]


def _sum(terms: Sequence[Value]) -> Value:
    """The XOR of ``terms``, as a balanced tree."""
    if not terms:
        return Const(0, 1)
    while len(terms) > 1:
        pairs = [terms[i] ^ terms[i + 1] for i in range(0, len(terms) - 1, 2)]
        terms = [*pairs, *terms[len(terms) - len(terms) % 2 :]]
    return terms[0]
