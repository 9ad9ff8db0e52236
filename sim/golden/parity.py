"""Parity of a row in plain Python: generate, update, check, and reconstruct any erasures.

Syndrome j of a row with data blocks D[0], D[1], .. is the sum of g**(j * i) * D[i]. Syndrome 0 is
P, 1 is Q, 2 is R and 3 is S.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from sim.golden.gf import RAID, SingularMatrixError

MOST_MDS_ROLES = 21
"""Data drives up to which four parities recover every pattern of four lost drives.

1 + g**10 + g**21 = 0. So of 22 data drives 0, 10 and 21 cannot be recovered when R is lost as well
(nor 0, 11 and 21 with Q). `singular_patterns` lists all.
"""


class UnsolvableError(ValueError):
    """The blocks that are left do not determine the lost ones."""


def weight(parity: int, role: int) -> int:
    """The coefficient of data role ``role`` in syndrome ``parity``."""
    return RAID.power(parity * role)


def generate(
    blocks: Sequence[bytes], parities: int, exponents: Sequence[int] | None = None
) -> list[bytes]:
    """The ``parities`` syndromes of the data blocks of a row.

    ``exponents`` replace the data roles (`sim.golden.layout.Layout.exponents`).
    """
    weighed = list(zip(exponents or range(len(blocks)), blocks, strict=True))
    return [RAID.weigh([(weight(j, x), block) for x, block in weighed]) for j in range(parities)]


def update(parity: Sequence[bytes], role: int, old: bytes, new: bytes) -> list[bytes]:
    """The syndromes after data role ``role`` changed from ``old`` to ``new``."""
    change = RAID.add(old, new)
    return [RAID.add(block, RAID.scale(weight(j, role), change)) for j, block in enumerate(parity)]


def consistent(blocks: Sequence[bytes], parity: Sequence[bytes]) -> bool:
    """Whether ``parity`` belongs to ``blocks``."""
    return generate(blocks, len(parity)) == list(parity)


def recovery_matrix(erased: Sequence[int], used: Sequence[int]) -> list[list[int]]:
    """Row b has the weights of the syndromes ``used`` in lost data role ``erased[b]``.

    Raises
    ------
    UnsolvableError
        There are not as many syndromes as lost roles, there are none, or the equations have no
        single solution.
    """
    if not erased or len(erased) != len(used):
        raise UnsolvableError(f"{len(erased)} lost roles and {len(used)} syndromes")
    try:
        return RAID.invert([[weight(j, role) for role in erased] for j in used])
    except SingularMatrixError:
        raise UnsolvableError(f"roles {list(erased)} from syndromes {list(used)}") from None


def recovery_weight(
    inverse: Sequence[Sequence[int]], used: Sequence[int], output: int, *, role: int
) -> int:
    """The coefficient of data role ``role`` in recovered block number ``output``."""
    total = 0
    for a, j in enumerate(used):
        total ^= RAID.mul(inverse[output][a], weight(j, role))
    return total


def recover(
    data: Mapping[int, bytes], parity: Mapping[int, bytes], erased: Sequence[int]
) -> list[bytes]:
    """The lost data roles ``erased`` from the other data roles and as many syndromes.

    Roles that are neither in ``data`` nor in ``erased`` count as zero.
    """
    used = sorted(parity)
    inverse = recovery_matrix(erased, used)
    sums = []
    for j in used:
        terms = [(weight(j, role), block) for role, block in data.items()]
        sums.append(RAID.weigh([(1, parity[j]), *terms]))
    return [RAID.weigh(list(zip(row, sums, strict=True))) for row in inverse]


def reconstruct(
    row: Sequence[bytes | None], parities: int, exponents: Sequence[int] | None = None
) -> list[bytes]:
    """A whole row (data, then parities) from one in which lost blocks are None.

    Every set of surviving syndromes of the right size is tried. ``exponents`` as for `generate`.
    """
    data, parity = row[: len(row) - parities], row[len(row) - parities :]
    order = exponents or range(len(data))
    lost = [x for x, block in zip(order, data, strict=True) if block is None]
    known = {x: block for x, block in zip(order, data, strict=True) if block is not None}
    live = {j: block for j, block in enumerate(parity) if block is not None}
    if lost:
        for used in combinations(live, len(lost)):
            try:
                found = recover(known, {j: live[j] for j in used}, lost)
            except UnsolvableError:
                continue
            known |= dict(zip(lost, found, strict=True))
            break
        else:
            raise UnsolvableError(f"roles {lost} from syndromes {sorted(live)}")
    blocks = [known[x] for x in order]
    return [*blocks, *generate(blocks, parities, exponents)]


def singular_patterns(
    data_roles: int, parities: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every (lost data roles, syndromes used) of one size that cannot be solved.

    With up to three syndromes there is none up to 32 drives. With four, three lost roles a, b, c
    cannot be solved from P, Q, S when g**a + g**b + g**c = 0. They cannot be solved from P, R, S
    when the same holds of the inverses. Every other combination can be solved, also with all four
    syndromes at once.
    """
    for size in range(1, min(data_roles, parities) + 1):
        for used in combinations(range(parities), size):
            for erased in combinations(range(data_roles), size):
                if RAID.determinant([[weight(j, r) for r in erased] for j in used]) == 0:
                    yield erased, used
