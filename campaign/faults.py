"""Faults of drives at random times. A fault is planted only if the array tolerates it beside all
others.

That is so before the first RESYNC has ended, too: a row that the host has written has its
redundancy from then on (docs/background.md, In sync). A block that nobody has written may turn into
anything by a fault, as it is worked out from parities without a meaning, or read from another copy.
So whoever plants a fault in such an array expects nothing of these blocks.
"""

import random

from campaign.array import Array
from hdl.config import DATA_OFFSET_BLOCKS

FAULT_TIME_NS = 120_000
"""Faults happen at any time in the first so many nanoseconds of a round."""

KINDS = {
    "medium": ("medium", "medium"),
    "hang": ("hang", "hang at end", "deaf", "lasting"),
    "late": ("late",),
    "restart": ("restart",),
    "pull": ("pull",),
    "refused": ("refused",),
}
"""The kinds of fault of each feature."""

HANGS = KINDS["hang"]
PASSING = ("hang", "deaf")
"""Faults that an array without redundancy survives, once a drive, since a second attempt succeeds.
"""

BURST = 0.3


class Faults:
    """Chooses and plants faults.

    Parameters
    ----------
    features
        Features of the campaign.
    choose
        Random choices.
    """

    def __init__(self, features: frozenset[str], choose: random.Random):
        self._features = features
        self._choose = choose
        self._kinds = [k for name, kinds in KINDS.items() if name in features for k in kinds]

    def plant(self, arrays: list[Array], count: int) -> None:
        """Plants up to so many faults an array. With bursts, many drives sometimes get one kind at
        the same moment."""
        if not self._kinds:
            return
        for array in arrays:
            for _ in range(count):
                self.plant_one(array)
        if arrays and "bursts" in self._features and self._choose.random() < BURST:
            self._burst(arrays)

    def plant_one(self, array: Array) -> None:
        """Plants one fault, if the array tolerates the one that was drawn."""
        if self._kinds:
            kind = self._choose.choice(self._kinds)
            self._plant(array, kind, self._choose.uniform(0, FAULT_TIME_NS))

    def hang_one(self, array: Array) -> None:
        """From now on a drive hangs, if the array tolerates it."""
        if kinds := [kind for kind in self._kinds if kind in HANGS]:
            position = self._choose.randrange(array.layout.drives)
            self._trouble(array, position, self._choose.choice(kinds), 0)

    def plant_in_migration(self, array: Array, position: int, port: int) -> None:
        """Plants up to two faults: of the member that migrates, of the drive at ``port`` to which
        it does, or of any member."""
        if not self._kinds:
            return
        seen = array.card.outcome.seen
        for _ in range(self._choose.randint(1, 2)):
            kind = self._choose.choice(self._kinds)
            delay_ns = self._choose.uniform(0, FAULT_TIME_NS)
            where = self._choose.choice(("a member", "the member that migrates", "the new drive"))
            if where == "a member":
                planted = self._plant(array, kind, delay_ns)
            elif where == "the new drive":
                planted = self._plant(array, kind, delay_ns, position, port)
            else:
                planted = self._plant(array, kind, delay_ns, position)
            seen[f"migrations with a fault of {where}: {kind}"] += planted

    def _plant(
        self,
        array: Array,
        kind: str,
        delay_ns: float,
        position: int | None = None,
        port: int | None = None,
    ) -> bool:
        """Plants a fault of this kind, of any member or the one at ``position``, or of the drive at
        ``port`` to which that migrates. Returns whether it is tolerated."""

        def draw() -> int:
            return self._choose.randrange(array.layout.drives) if position is None else position

        if kind == "medium" and port is not None:
            return False  # nobody reads it yet
        if kind not in ("medium", "refused"):
            return self._trouble(array, draw(), kind, delay_ns, port)
        planted = False
        for _ in range(self._choose.randint(2, 6)):
            where, row = draw(), self._choose.randrange(array.rows)
            if kind == "medium":
                planted |= self._spoil(array, where, row, delay_ns)
            else:
                planted |= self._refuse(array, where, row, delay_ns, port)
        return planted

    def _burst(self, arrays: list[Array]) -> None:
        """A cause that several drives share: many have the same fault at the same moment, if it is
        tolerated."""
        kind = self._choose.choice(self._kinds)
        delay = self._choose.uniform(0, FAULT_TIME_NS)
        places = [(array, p) for array in arrays for p in range(array.layout.drives)]
        self._choose.shuffle(places)
        arrays[0].card.outcome.faults["burst"] += 1
        for array, position in places[: self._choose.randint(2, max(2, len(places)))]:
            if kind == "medium":
                row = self._choose.randrange(min(4, array.rows))
                self._spoil(array, position, row, delay)
            elif kind == "refused":
                self._refuse(array, position, self._choose.randrange(min(4, array.rows)), delay)
            else:
                self._trouble(array, position, kind, delay)

    # One fault

    def _spoil(self, array: Array, position: int, row: int, delay_ns: float) -> bool:
        """Makes a block unreadable, until it is written. Returns whether it does."""
        budget, card = array.budget, array.card
        if (position, row) in budget.bad or position in budget.drives:
            return False
        if not array.redundant:
            budget.bad.add((position, row))
        elif not budget.admits(bad=[(position, row)]):
            return False
        port = array.ports[position]

        async def spoil() -> None:
            await card.sleep(delay_ns)
            card.harness.medium_error(port, DATA_OFFSET_BLOCKS + row)

        card.outcome.faults["medium"] += 1
        card.transport.spawn(spoil())
        return True

    def _refuse(
        self, array: Array, position: int, row: int, delay_ns: float, new: int | None = None
    ) -> bool:
        """Makes a block unwritable, and returns whether it does. The array may give up its drive
        for it.

        ``new`` is the port of a drive to which the member migrates, which then refuses the block.
        """
        card, port = array.card, array.ports[position] if new is None else new
        first = not any(place[0] == port for place in array.refused)
        if first and new is None and position in array.budget.drives:
            return False
        if not (array.redundant and array.budget.admits(drives=[position])):
            return False
        array.refused.add((port, row))
        array.troubled.add(port)

        async def refuse() -> None:
            await card.sleep(delay_ns)
            card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row)

        card.outcome.faults["refused"] += first
        card.transport.spawn(refuse())
        return True

    def _trouble(
        self, array: Array, position: int, kind: str, delay_ns: float, new: int | None = None
    ) -> bool:
        """Makes a drive stop for a while, or go. Returns whether it does.

        ``new`` is the port of a drive to which the member migrates, which then has the fault.
        """
        card, choose = array.card, self._choose
        port = array.ports[position] if new is None else new
        if new is None and position in array.budget.drives:
            return False
        if not array.redundant:
            # A reset does not pass where none is forgiven.
            passing = PASSING if card.config.drive_resets else PASSING[:1]
            if port in card.troubled or kind not in passing or card.drive.reset_loses_cache:
                return False
        elif not array.budget.admits(drives=[position]):
            return False
        card.troubled.add(port)
        array.troubled.add(port)
        card.outcome.faults[kind] += 1
        few = choose.randint(1, 3) if array.redundant else 1
        deaf, back = choose.random() < 0.3, choose.random() < 0.5
        late_ns = choose.uniform(10_000, 1.2 * card.ladder_ns)
        again_ns = choose.uniform(0, FAULT_TIME_NS)
        if card.drive.reset_loses_cache and kind in (*HANGS, "late"):
            array.forgot.add(port)

        async def trouble() -> None:
            await card.sleep(delay_ns)
            harness = card.harness
            if kind == "hang":
                harness.drive_fault(port, few)
            elif kind == "hang at end":
                harness.drive_fault(port, few, at_end=True, deaf=deaf)
            elif kind == "deaf":
                harness.drive_fault(port, deaf=True)
            elif kind == "late":
                harness.drive_fault(port, few, delay_ns=late_ns)
            elif kind == "lasting":
                harness.drive_fault(port, deaf=deaf, lasting=True)
            elif kind == "restart":
                harness.restart_drive(port)
                array.restarted.add(port)
            else:
                card.pull(port)
                if back:
                    # It comes back with its old contents. Its array must not use them.
                    await card.sleep(again_ns)
                    harness.insert(port)
                    card.outcome.faults["return"] += 1

        card.transport.spawn(trouble())
        return True
