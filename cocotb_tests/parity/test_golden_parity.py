"""The golden model of parity against Intel ISA-L, and which patterns can be solved at all."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdl.config import MAX_DRIVES
from hdl.parity.field import RAID_FIELD, Field
from hdl.parity.galois import inverse_table, power_table, product
from sim import isal
from sim.golden.gf import RAID, Gf, SingularMatrixError
from sim.golden.parity import (
    MOST_MDS_ROLES,
    UnsolvableError,
    consistent,
    generate,
    reconstruct,
    recovery_matrix,
    singular_patterns,
    update,
    weight,
)

BLOCK = 64


def blocks_of(count: int, seed: int = 1) -> list[bytes]:
    """Blocks that look random, from a linear congruential generator."""
    state = seed
    result = []
    for _ in range(count):
        values = bytearray()
        for _ in range(BLOCK):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            values.append(state >> 56)
        result.append(bytes(values))
    return result


def test_every_product_and_inverse_is_isal_s():
    for a in range(256):
        for b in range(256):
            assert RAID.mul(a, b) == isal.mul(a, b) == product(RAID_FIELD, a, b)
    table = inverse_table(RAID_FIELD)
    assert table[0] == 0
    for a in range(1, 256):
        assert RAID.inv(a) == isal.inv(a) == table[a]


def test_weights_are_the_hardware_s():
    table = power_table(RAID_FIELD, roles=MAX_DRIVES, parities=4)
    for role in range(MAX_DRIVES):
        assert table[role] == [weight(j, role) for j in range(4)]


@pytest.mark.parametrize("drives", range(3, MAX_DRIVES + 1))
def test_p_and_q_are_isal_s(drives):
    """RAID 5 has `drives` - 1 data blocks, RAID 6 one less."""
    blocks = blocks_of(drives - 1, drives)
    assert generate(blocks, 1) == [isal.xor(blocks)]
    if drives > 3:
        assert generate(blocks[:-1], 2) == list(isal.pq(blocks[:-1]))
    for parities in (3, 4):
        matrix = isal.rs_matrix(parities, len(blocks))
        assert generate(blocks, parities) == isal.encode(matrix, blocks)


@pytest.mark.parametrize("drives", range(4, MAX_DRIVES + 1))
def test_every_two_erasures_of_raid_6(drives):
    """Any two of data, P and Q: two data, data and P, data and Q, P and Q; rows made by ISA-L."""
    blocks = blocks_of(drives - 2, drives)
    row = [*blocks, *isal.pq(blocks)]
    for lost in combinations(range(drives), 2):
        holes = [None if role in lost else block for role, block in enumerate(row)]
        assert reconstruct(holes, 2) == row


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_reconstruction_of_any_erasures(data):
    parities = data.draw(st.integers(1, 4), label="parities")
    count = data.draw(st.integers(1, MOST_MDS_ROLES), label="data drives")
    row = blocks_of(count, data.draw(st.integers(1, 1000)))
    row += generate(row, parities)
    roles = st.integers(0, len(row) - 1)
    lost = data.draw(st.sets(roles, max_size=parities), label="lost")
    holes = [None if role in lost else block for role, block in enumerate(row)]
    assert reconstruct(holes, parities) == row


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_update_keeps_a_row_consistent(data):
    count = data.draw(st.integers(1, 28))
    parities = data.draw(st.integers(1, 4))
    old = blocks_of(count)
    role = data.draw(st.integers(0, count - 1))
    change = blocks_of(1, 7)[0]
    parity = update(generate(old, parities), role, old[role], change)
    new = [*old[:role], change, *old[role + 1 :]]
    assert consistent(new, parity)
    assert consistent(old, parity) == (change == old[role])


def test_what_up_to_three_parities_solve():
    """Everything, up to 32 drives."""
    for parities in (1, 2, 3):
        assert not list(singular_patterns(MAX_DRIVES - parities, parities))


def test_what_four_parities_solve():
    """Everything but three data lost at these distances, together with R or with Q."""
    data = MAX_DRIVES - 4
    without_r, without_q = (0, 1, 3), (0, 2, 3)
    expected = {
        (tuple(first + place for place in places), used)
        for places, used in [
            ((0, 1, 25), without_r),
            ((0, 10, 21), without_r),
            ((0, 24, 25), without_q),
            ((0, 11, 21), without_q),
        ]
        for first in range(data - places[-1])
    }
    assert set(singular_patterns(data, 4)) == expected
    assert min(max(erased) for erased, _ in expected) == MOST_MDS_ROLES
    assert RAID.power(0) ^ RAID.power(1) ^ RAID.power(25) == 0
    assert RAID.power(0) ^ RAID.power(10) ^ RAID.power(21) == 0


def test_elimination_needs_no_search_for_pivots():
    """Leading minors of every matrix of up to 32 drives are not zero before the last.

    `hdl.parity.solver` relies on it.
    """
    used_by_singular = {used for _, used in singular_patterns(MAX_DRIVES - 1, 4)}
    for size in range(1, 5):
        for used in combinations(range(4), size):
            assert not any(used[:leading] in used_by_singular for leading in range(1, size))


@given(size=st.integers(1, 4), data=st.data())
@settings(deadline=None, max_examples=60)
def test_matrix_inverse(size, data):
    row = st.lists(st.integers(0, 255), min_size=size, max_size=size)
    matrix = data.draw(st.lists(row, min_size=size, max_size=size))
    if RAID.determinant(matrix) == 0:
        with pytest.raises(SingularMatrixError):
            RAID.invert(matrix)
        return
    inverse = RAID.invert(matrix)
    for i in range(size):
        for j in range(size):
            total = 0
            for k in range(size):
                total ^= RAID.mul(matrix[i][k], inverse[k][j])
            assert total == (i == j)


def test_errors_are_named():
    with pytest.raises(UnsolvableError, match="2 lost roles and 1 syndromes"):
        recovery_matrix([0, 1], [0])
    with pytest.raises(UnsolvableError, match=r"roles \[0, 10, 21\] from syndromes \[0, 1, 3\]"):
        recovery_matrix([0, 10, 21], [0, 1, 3])
    with pytest.raises(UnsolvableError, match=r"roles \[0, 1\] from syndromes \[0\]"):
        reconstruct([None, None, blocks_of(1)[0]], 1)
    with pytest.raises(ZeroDivisionError):
        RAID.inv(0)
    with pytest.raises(ValueError, match="not primitive"):
        Gf(Field(polynomial=0x11D, generator=8))
    with pytest.raises(ValueError, match="generator must be 2"):
        Field(polynomial=0x11D, generator=1)
    with pytest.raises(ValueError, match="degree 2 or more"):
        Field(polynomial=3, generator=2)


def test_isal_refuses_unequal_blocks():
    with pytest.raises(ValueError, match="different lengths"):
        isal.pq([bytes(BLOCK), bytes(2 * BLOCK)])
    with pytest.raises(ValueError, match="multiple of 32"):
        isal.pq([bytes(33), bytes(33)])


def test_missing_library_is_one_line(monkeypatch):
    monkeypatch.setattr(isal, "LIBRARY", "libabsent.so")
    monkeypatch.setattr(isal.ctypes.util, "find_library", lambda name: None)
    isal._library.cache_clear()
    try:
        assert not isal.available()
        with pytest.raises(isal.MissingLibraryError, match="apt-get install libisal2"):
            isal.xor([bytes(BLOCK), bytes(BLOCK)])
    finally:
        isal._library.cache_clear()
