"""Which drives make an array, as md judges by their superblocks.

It is written from `mdadm --assemble` (mdadm 4.2, Assemble.c) and `super_1_validate` (Linux 6.1,
`drivers/md/md.c`), and shares nothing with the hardware.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.golden.superblock import CLEAN, Feature, Superblock

PARITIES = {4: 1, 5: 1, 6: 2, 7: 3}
"""How many drives each level with parity does without. 7 is the card's own, with triple parity. md
starts no such array."""

ALIKE = ("set_uuid", "ctime", "level", "layout", "size", "chunk", "raid_disks")
"""What the superblocks of an array have in common."""


class NoArrayError(ValueError):
    """The drives do not make one array. The text says why."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What md makes of drives that belong to one array.

    ``members`` are the drives that hold their role in full, and ``rebuilding`` those that do so up
    to a sector, each by role. ``left_out`` are the others: too old, or failed, or nobody.
    ``expected`` are the roles that the freshest superblock has a drive for. ``claimed`` are those
    that drives that are not too old have in full by their own word.
    """

    freshest: Superblock
    members: Mapping[int, int]
    rebuilding: Mapping[int, int]
    left_out: frozenset[int]
    expected: frozenset[int]
    claimed: frozenset[int]

    @property
    def degraded(self) -> int:
        """How many roles no drive holds in full."""
        return self.freshest.raid_disks - len(self.members)

    @property
    def dirty(self) -> bool:
        """Whether rows may be inconsistent."""
        return self.freshest.resync_offset != CLEAN

    @property
    def starts(self) -> bool:
        """Whether mdadm starts it by itself.

        It does not if a drive is missing that the freshest superblock has not given up. Nor if rows
        may be inconsistent and blocks would be worked out from them, which could be wrong. mdadm
        asks that of what drives claim, and the kernel of what the freshest superblock says.
        """
        return self.enough and len(self.claimed) + len(self.rebuilding) >= len(self.expected)

    @property
    def enough(self) -> bool:
        """Whether the drives that are there hold all data, and none of it is in doubt."""
        return self._enough(self.claimed) and self._enough(frozenset(self.members))

    def _enough(self, roles: frozenset[int]) -> bool:
        """Whether drives with these roles hold all data, and none of it is in doubt."""
        one = self.freshest
        if one.level in PARITIES:
            tolerated = 0 if self.dirty else PARITIES[one.level]
            return len(roles) >= one.raid_disks - tolerated
        if one.level == 1:
            return bool(roles)
        if one.level == 10:
            # The copies of a strip lie side by side.
            copies, disks = one.layout & 0xFF, one.raid_disks
            return all(
                any((first + copy) % disks in roles for copy in range(copies))
                for first in range(0, disks * copies, copies)
            )
        return len(roles) == one.raid_disks


def judge(found: Mapping[int, Superblock]) -> Judgement:
    """What md makes of the drives with these superblocks, by the drives' numbers.

    Of drives that claim one role md takes the freshest, or the first of those that are alike.
    Raises `NoArrayError` if they do not belong together.
    """
    if not found:
        raise NoArrayError("there is no drive")
    freshest = max(found.values(), key=lambda one: one.events)
    for number, one in found.items():
        for name in ALIKE:
            if getattr(one, name) != getattr(freshest, name):
                raise NoArrayError(f"drive {number} has another {name}")
    members: dict[int, int] = {}
    rebuilding: dict[int, int] = {}
    claimed: set[int] = set()
    for number, one in sorted(found.items(), key=lambda item: -item[1].events):
        if one.events + 1 < freshest.events:
            break
        rebuilds = bool(one.features & Feature.RECOVERY_OFFSET)
        if one.role < one.raid_disks and not rebuilds:
            claimed.add(one.role)
        # One that is as fresh is believed.
        source = one if one.events == freshest.events else freshest
        role = source.role_of(one.device_number)
        if role >= freshest.raid_disks or role in {*members, *rebuilding}:
            continue
        (rebuilding if rebuilds else members)[role] = number
    return Judgement(
        freshest=freshest,
        members=members,
        rebuilding=rebuilding,
        left_out=frozenset(found) - {*members.values(), *rebuilding.values()},
        expected=frozenset(role for role in freshest.roles if role < freshest.raid_disks),
        claimed=frozenset(claimed),
    )
