"""The end of a row that is walked in the background, in plain Python.

This is the reference for `hdl.stripe.walks.walk_plan`, and for what the sequencer does with its
plans.
"""

from dataclasses import dataclass

from sim.golden.planner import plan


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A row to walk: its shape, and the roles (data, then parities; or copies) with a fault.

    ``dead``: the drive is gone. ``stale``: the drive is being rebuilt and the rebuild has not come
    to this row. ``unreadable``: the drive cannot read the block. ``wrong``: the drive has a wrong
    block, or with copies another block than the first good copy. ``migrated``: the role, if any,
    whose member is being migrated to another drive.
    """

    kind: str
    data: int
    parities: int = 0
    copies: int = 1
    dead: frozenset[int] = frozenset()
    stale: frozenset[int] = frozenset()
    unreadable: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    migrated: frozenset[int] = frozenset()

    @property
    def roles(self) -> frozenset[int]:
        """All roles of the row."""
        return frozenset(range(self.copies if self.copies > 1 else self.data + self.parities))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a walk: the result, the roles that it names, the roles that were written with
    their contents, and the roles that were made unreadable."""

    result: str
    roles: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    spoilt: frozenset[int] = frozenset()


def outcome(walk: Walk) -> Outcome:
    """The outcome of a walk. Roles that it does not read stay as they are."""
    bad = walk.stale - walk.dead
    again = False
    while True:
        steps = _steps(walk, bad, again=again)
        if steps is None:
            if _withheld(walk):
                return Outcome(result="FAILED", roles=walk.dead | bad)
            spoils = walk.kind in ("REBUILD", "SALVAGE", "MIGRATE")
            spoilt = walk.stale - walk.dead if spoils else frozenset()
            if walk.kind == "RESYNC" and walk.copies == 1:
                # Parities that may never have been the row's.
                spoilt = frozenset(role for role in walk.roles if role >= walk.data) - walk.dead
            return Outcome(result="LOST", roles=walk.dead | bad, spoilt=spoilt)
        read, written = steps
        found = read & walk.unreadable
        if not found:
            break
        bad |= found
        again = True
    compares = walk.kind in ("CHECK", "REPAIR") and not again
    if compares and walk.wrong and _comparable(walk, bad):
        parities = {role for role in walk.roles - walk.dead if role >= walk.data}
        located = walk.copies > 1 or (
            len(walk.wrong) == 1 and 1 < walk.parities == len(parities)
        )
        roles = walk.wrong if located else frozenset()
        written = roles or parities if walk.kind == "REPAIR" else ()
        return Outcome(result="MISMATCH", roles=roles, written=frozenset(written))
    mended = bad - walk.stale
    return Outcome(
        result="MENDED" if mended else "GOOD", roles=frozenset(mended), written=frozenset(written)
    )


def _withheld(walk: Walk) -> bool:
    """More drives are missing than tolerated, and may come back. The row is left as it is."""
    most = walk.copies - 1 if walk.copies > 1 else walk.parities
    taken_over = walk.kind == "MIGRATE" and walk.stale
    stops = walk.kind in ("RESYNC", "REBUILD") or taken_over
    return bool(stops) and len(walk.dead | walk.stale) > most


def _comparable(walk: Walk, bad: frozenset[int]) -> bool:
    """Nothing that is needed is lost, and there is a parity to compare with."""
    if walk.copies > 1:
        return not bad
    live = walk.roles - walk.dead
    data = {role for role in live if role < walk.data}
    return not bad and len(data) == walk.data and len(live) > len(data)


def _steps(walk: Walk, bad: frozenset[int], *, again: bool) -> tuple[set[int], set[int]] | None:
    """The roles that one attempt reads and writes, or None if it is impossible."""
    live = walk.roles - walk.dead
    good = live - bad
    mend = set(live & bad)
    if walk.kind == "ZERO":
        return set(), set(live)
    looks = walk.kind in ("CHECK", "REPAIR", "PATROL") and not again
    if walk.kind == "MIGRATE":
        # The member of a migration is not mended.
        mend -= walk.migrated
        if not bad & (walk.stale | walk.migrated):
            return set(walk.migrated), set()
    if walk.copies > 1:
        if not good:
            return None
        first = min(good)
        written = set(live - {first}) if walk.kind == "RESYNC" else mend
        reads = written or walk.kind == "MIGRATE"
        return (set(good) if looks else {first} if reads else set()), written
    if not walk.parities:
        rebuilds = walk.kind in ("REBUILD", "SALVAGE")
        if walk.kind == "RESYNC" or (rebuilds and not walk.stale):
            return set(), set()
        return None if good != walk.roles else (set(good) if looks else set(), set())
    chosen = plan(
        recover_row=True,
        data=walk.data,
        parities=walk.parities,
        joined=set(),
        dead=set(walk.dead | bad),
    )
    if chosen.kind == "IMPOSSIBLE":
        return None
    written = mend
    if walk.kind == "RESYNC":
        written |= {role for role in live if role >= walk.data}
    read = set(chosen.read_data) | {walk.data + parity for parity in chosen.read_parity}
    reads = written or walk.kind == "MIGRATE"
    return (set(good) if looks else read if reads else set()), written
