"""Intel ISA-L's erasure coding through ctypes: an independent reference."""

import ctypes
import ctypes.util
from collections.abc import Sequence
from functools import cache

ALIGNMENT = 32
"""Bytes to which ISA-L wants its buffers aligned."""

TABLE_BYTES = 32
"""Bytes of ISA-L's expanded table of one coefficient."""

LIBRARY = "libisal.so.2"


class MissingLibraryError(RuntimeError):
    """ISA-L is not installed."""


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(ctypes.util.find_library("isal") or LIBRARY)
    except OSError:
        raise MissingLibraryError(
            "Intel ISA-L is missing; install it with: apt-get install libisal2"
        ) from None
    for name in ("pq_gen", "xor_gen"):
        getattr(library, name).restype = ctypes.c_int
    for name in ("gf_mul", "gf_inv"):
        getattr(library, name).restype = ctypes.c_ubyte
    library.gf_invert_matrix.restype = ctypes.c_int
    return library


def available() -> bool:
    """Whether the library is there."""
    try:
        _library()
    except MissingLibraryError:
        return False
    return True


class _Buffers:
    """Aligned copies of blocks, and the array of pointers to them."""

    def __init__(self, blocks: Sequence[bytes]):
        self.length = len(blocks[0])
        if any(len(block) != self.length for block in blocks):
            raise ValueError("blocks of different lengths")
        if self.length % ALIGNMENT:
            raise ValueError(f"blocks must be a multiple of {ALIGNMENT} bytes")
        self._memory = ctypes.create_string_buffer(len(blocks) * self.length + ALIGNMENT)
        start = ctypes.addressof(self._memory)
        start += -start % ALIGNMENT
        self.addresses = [start + index * self.length for index in range(len(blocks))]
        for address, block in zip(self.addresses, blocks, strict=True):
            ctypes.memmove(address, bytes(block), self.length)
        self.pointers = (ctypes.c_void_p * len(blocks))(*self.addresses)

    def __getitem__(self, index: int) -> bytes:
        return ctypes.string_at(self.addresses[index], self.length)


def pq(blocks: Sequence[bytes]) -> tuple[bytes, bytes]:
    """P and Q of at least two data blocks (``pq_gen``)."""
    zero = bytes(len(blocks[0]))
    buffers = _Buffers([*blocks, zero, zero])
    count = len(blocks) + 2
    if _library().pq_gen(count, buffers.length, buffers.pointers):
        raise ValueError(f"pq_gen refused {count} buffers of {buffers.length} bytes")
    return buffers[-2], buffers[-1]


def xor(blocks: Sequence[bytes]) -> bytes:
    """The XOR of at least two blocks (``xor_gen``)."""
    buffers = _Buffers([*blocks, bytes(len(blocks[0]))])
    count = len(blocks) + 1
    if _library().xor_gen(count, buffers.length, buffers.pointers):
        raise ValueError(f"xor_gen refused {count} buffers of {buffers.length} bytes")
    return buffers[-1]


def mul(a: int, b: int) -> int:
    """A product in ISA-L's field (``gf_mul``)."""
    return _library().gf_mul(ctypes.c_ubyte(a), ctypes.c_ubyte(b))


def inv(a: int) -> int:
    """An inverse in ISA-L's field (``gf_inv``)."""
    return _library().gf_inv(ctypes.c_ubyte(a))


def invert(matrix: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """The inverse of a square matrix, or None when it has none (``gf_invert_matrix``)."""
    size = len(matrix)
    source = (ctypes.c_ubyte * (size * size))(*(value for row in matrix for value in row))
    result = (ctypes.c_ubyte * (size * size))()
    if _library().gf_invert_matrix(source, result, size):
        return None
    return [list(result[row * size : (row + 1) * size]) for row in range(size)]


def rs_matrix(parities: int, data: int) -> list[list[int]]:
    """The Vandermonde part of ``gf_gen_rs_matrix``: row j, column i is g**(j * i)."""
    total = data + parities
    matrix = (ctypes.c_ubyte * (total * data))()
    _library().gf_gen_rs_matrix(matrix, total, data)
    rows = [list(matrix[row * data : (row + 1) * data]) for row in range(total)]
    return rows[data:]


def encode(matrix: Sequence[Sequence[int]], blocks: Sequence[bytes]) -> list[bytes]:
    """Row by row the weighted sums of ``blocks`` (``ec_encode_data``)."""
    rows, columns = len(matrix), len(blocks)
    flat = (ctypes.c_ubyte * (rows * columns))(*(value for row in matrix for value in row))
    tables = ctypes.create_string_buffer(rows * columns * TABLE_BYTES)
    library = _library()
    library.ec_init_tables(columns, rows, flat, tables)
    source = _Buffers(blocks)
    target = _Buffers([bytes(source.length)] * rows)
    library.ec_encode_data(source.length, columns, rows, tables, source.pointers, target.pointers)
    return [target[-rows + row] for row in range(rows)]
