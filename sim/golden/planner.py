"""Plans for a row in plain Python, and their effect on the row's blocks.

This is the reference for `hdl.stripe.planning.planner`. `plan` lists every way that works, counts
its reads and chooses. `carry_out` does the arithmetic, and refuses to touch a dead drive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.golden.parity import generate, recover, update

Block = bytes
NOTHING: set[int] = set()


class DeadDriveError(AssertionError):
    """A plan reads or writes a drive that is not there."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Roles to read, recover and write: `hdl.stripe.planning.plan.plan` with sets for masks."""

    kind: str
    read_data: frozenset[int] = frozenset()
    read_parity: frozenset[int] = frozenset()
    erased: frozenset[int] = frozenset()
    use_parity: frozenset[int] = frozenset()
    write_data: frozenset[int] = frozenset()
    write_parity: frozenset[int] = frozenset()

    @property
    def reads(self) -> int:
        """Blocks to read."""
        return len(self.read_data) + len(self.read_parity)


def plan(
    *,
    recover_row: bool,
    data: int,
    parities: int,
    joined: set[int],
    dead: set[int],
    bad: set[int] = NOTHING,
    stale: set[int] = NOTHING,
    unsynced: bool = False,
) -> Plan:
    """The plan for a row of ``data`` strips and ``parities``. Role numbers count parities after
    data.

    ``dead``: roles that are neither read nor written. ``bad``: roles that cannot be read.
    ``stale``: those of the bad ones that hold nothing for the row even once they are written.
    ``unsynced``: the old parities prove nothing of blocks that are written without reading the
    rest. Of plans with equally many reads the first in the list is taken.
    """
    strips = frozenset(range(data))
    joined_strips = frozenset(joined) & strips
    gone = frozenset(dead) & strips
    unreadable = frozenset(dead | bad) & strips
    live = frozenset(j for j in range(parities) if data + j not in dead)
    usable = frozenset(j for j in live if data + j not in bad)
    lost = unreadable | joined_strips if recover_row else unreadable
    used = frozenset(sorted(usable)[: len(lost)])
    solvable = len(lost) <= len(usable)

    if recover_row:
        if not solvable:
            return Plan(kind="IMPOSSIBLE")
        return Plan(
            kind="RECOVER", read_data=strips - lost, read_parity=used, erased=lost, use_parity=used
        )

    writes = {"write_data": joined_strips - gone, "write_parity": live}
    if parities == 0:
        return Plan(kind="WRITE_ONLY", **writes)
    # What the parities alone hold afterwards.
    owed = (strips & frozenset(dead | stale)) | (unreadable - joined_strips)
    if len(owed) > len([j for j in live if data + j not in stale]):
        return Plan(kind="IMPOSSIBLE")
    ways = []
    if not live:
        ways.append(Plan(kind="WRITE_ONLY", **writes))
    if joined_strips == strips:
        ways.append(Plan(kind="FULL", **writes))
    if unreadable <= joined_strips:
        ways.append(Plan(kind="RECONSTRUCT", read_data=strips - joined_strips, **writes))
    if not unsynced and not unreadable & joined_strips and usable == live:
        ways.append(Plan(kind="UPDATE", read_data=joined_strips, read_parity=live, **writes))
    if solvable and not unreadable <= joined_strips:
        ways.append(
            Plan(
                kind="RECOVER_RECONSTRUCT",
                read_data=strips - unreadable,
                read_parity=used,
                erased=unreadable,
                use_parity=used,
                **writes,
            )
        )
    return min(ways, key=lambda way: way.reads, default=Plan(kind="IMPOSSIBLE"))


def carry_out(
    chosen: Plan,
    row: Sequence[Block | None],
    parities: int,
    new: Mapping[int, Block],
    bad: set[int] = NOTHING,
) -> list[Block | None]:
    """The row after the plan. ``row`` holds data, then parities, and None where a drive is dead.

    Roles in ``bad`` may be written, but not read. For RECOVER the lost data blocks are filled in
    and nothing else changes.
    """
    data = len(row) - parities

    def there(role: int) -> Block:
        block = row[role]
        if block is None:
            raise DeadDriveError(f"role {role} is used")
        return block

    def read(role: int) -> Block:
        if role in bad:
            raise DeadDriveError(f"role {role} is read")
        return there(role)

    old = {role: read(role) for role in chosen.read_data}
    old_parity = {j: read(data + j) for j in chosen.read_parity}
    result = list(row)
    if chosen.kind == "IMPOSSIBLE":
        return result
    erased = sorted(chosen.erased)
    if erased:
        used = {j: old_parity[j] for j in chosen.use_parity}
        old |= dict(zip(erased, recover(old, used, erased), strict=True))
    if chosen.kind == "RECOVER":
        for role in erased:
            result[role] = old[role]
        return result

    if chosen.kind == "UPDATE":
        # Dead parities are carried along as zeros and never written.
        nothing = bytes(len(next(iter(old_parity.values()))))
        parity = [old_parity.get(j, nothing) for j in range(parities)]
        for role, block in new.items():
            parity = update(parity, role, old[role], block)
    elif chosen.kind == "WRITE_ONLY":
        parity = []
    else:
        parity = generate(
            [new[role] if role in new else old[role] for role in range(data)], parities
        )
    writes = [(role, new[role]) for role in chosen.write_data]
    writes += [(data + j, parity[j]) for j in chosen.write_parity]
    for role, block in writes:
        there(role)
        result[role] = block
    return result
