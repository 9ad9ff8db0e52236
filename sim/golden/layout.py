"""The place of every block of an array, in the layouts of Linux md, in plain Python.

This is the reference for the mapper. Parity levels follow md's algorithms (drivers/md/raid5.c
`raid5_compute_sector`, `raid6_idx_to_slot`). Mirrors follow md's near layout (drivers/md/raid10.c
`__raid10_find_phys`; an odd number of drives is RAID 1E). RAID 50 and 60 are RAID 5 and 6 with
spans, and consecutive stripes go to consecutive spans. RAIDTP is triple parity, with R after Q.
`sim.md` compares everything but triple parity with the data that Linux writes.
"""

from dataclasses import dataclass

MAX_DRIVES = 32
MAX_STRIP_BLOCKS = 256
DATA_OFFSET_BLOCKS = 256
PARITIES = {
    "RAID0": 0,
    "RAID1": 0,
    "RAID5": 1,
    "RAID6": 2,
    "RAIDTP": 3,
    "RAID10": 0,
    "JBOD": 0,
}
LEAST_DRIVES = {
    "RAID0": 2,
    "RAID1": 2,
    "RAID5": 3,
    "RAID6": 4,
    "RAIDTP": 5,
    "RAID10": 2,
    "JBOD": 1,
}
MIRRORED = ("RAID1", "RAID10")
SYNDROMES = "PQR"

LEFT_SYMMETRIC = "left-symmetric"
RIGHT_SYMMETRIC = "right-symmetric"
LEFT_ASYMMETRIC = "left-asymmetric"
RIGHT_ASYMMETRIC = "right-asymmetric"
PARITY_FIRST = "parity-first"
PARITY_LAST = "parity-last"
DDF_ZERO_RESTART = "ddf-zero-restart"
DDF_N_RESTART = "ddf-N-restart"
DDF_N_CONTINUE = "ddf-N-continue"
DDF = (DDF_ZERO_RESTART, DDF_N_RESTART, DDF_N_CONTINUE)
"""Rotations of RAID 6 in which Q weighs a block by its place. In all others it weighs by the order
after Q."""
ROTATIONS = (
    LEFT_SYMMETRIC,
    RIGHT_SYMMETRIC,
    LEFT_ASYMMETRIC,
    RIGHT_ASYMMETRIC,
    PARITY_FIRST,
    PARITY_LAST,
    *DDF,
)
"""mdadm's names (``--layout``). The first is the default."""


def rotations(level: str) -> tuple[str, ...]:
    """The rotations of a level."""
    if PARITIES[level] == 0:
        return (LEFT_SYMMETRIC,)
    return ROTATIONS if level == "RAID6" else ROTATIONS[: -len(DDF)]


@dataclass(frozen=True)
class Place:
    """A block of a member: ``position`` is the member index over all spans, ``row`` counts from the
    start of its area."""

    position: int
    row: int


@dataclass(frozen=True)
class Extent:
    """Consecutive rows of one strip, with the names of `hdl.flow.extent.extent`."""

    base: int
    shift: int
    index: int
    row: int
    ordinal: int
    blocks: int
    offset: int
    final: bool
    last: bool


@dataclass(frozen=True)
class Layout:
    """An array's layout.

    Parameters
    ----------
    level
        RAID0, RAID1, RAID5, RAID6, RAIDTP, RAID10 or JBOD.
    drives
        Members over all spans.
    strip_blocks
        Blocks of a strip, a power of two up to 256.
    copies
        Copies of each block. 0 is the level's default.
    spans
        Parity sets that stripes go round. 1 unless the level has parity.
    rotation
        How parity moves from stripe to stripe, one of `rotations` of the level.
    """

    level: str
    drives: int
    strip_blocks: int
    copies: int = 0
    spans: int = 1
    rotation: str = LEFT_SYMMETRIC

    def __post_init__(self) -> None:
        if self.level not in PARITIES:
            raise ValueError(f"level must be one of {', '.join(PARITIES)}, not {self.level}")
        if self.strip_blocks & (self.strip_blocks - 1) or not (
            1 <= self.strip_blocks <= MAX_STRIP_BLOCKS
        ):
            raise ValueError(
                f"strip_blocks must be a power of two in 1..256, not {self.strip_blocks}"
            )
        if self.copies == 0:
            default = {"RAID1": self.drives, "RAID10": 2}.get(self.level, 1)
            object.__setattr__(self, "copies", default)
        if self.level in MIRRORED:
            if not 2 <= self.copies <= self.drives:
                raise ValueError(f"copies must be 2..{self.drives}, not {self.copies}")
        elif self.copies != 1:
            raise ValueError(f"{self.level} has one copy, not {self.copies}")
        if self.spans < 1 or self.drives % self.spans:
            raise ValueError(f"{self.spans} spans do not divide {self.drives} drives")
        if self.spans > 1 and not self.parities:
            raise ValueError(f"{self.level} has no spans")
        if self.drives > MAX_DRIVES or self.width < LEAST_DRIVES[self.level]:
            raise ValueError(f"{self.level} does not fit {self.drives} drives")
        if self.level == "JBOD" and self.drives != 1:
            raise ValueError(f"JBOD is one drive, not {self.drives}")
        if self.rotation not in ROTATIONS:
            raise ValueError(f"rotation must be one of {', '.join(ROTATIONS)}, not {self.rotation}")
        if self.rotation not in rotations(self.level):
            raise ValueError(f"{self.level} has no rotation {self.rotation}")

    @property
    def parities(self) -> int:
        """Parity blocks of a row."""
        return PARITIES[self.level]

    @property
    def width(self) -> int:
        """Drives of a span."""
        return self.drives // self.spans

    @property
    def data(self) -> int:
        """Data strips of a stripe, before mirroring."""
        return self.width - self.parities

    def rows(self, capacities) -> int:
        """Rows that members of ``capacities`` blocks hold, in whole strips."""
        free = min(capacities) - DATA_OFFSET_BLOCKS
        return max(0, free // self.strip_blocks * self.strip_blocks)

    def blocks(self, rows: int) -> int:
        """Blocks that the array offers."""
        stripes = rows // self.strip_blocks
        if self.copies > 1:
            return stripes * self.width // self.copies * self.strip_blocks
        return stripes * self.data * self.spans * self.strip_blocks

    def parity_places(self, row: int) -> list[int]:
        """Places in a span of P, Q, R of a row. Not for mirrors."""
        n, m = self.width, self.parities
        stripe = row // self.strip_blocks
        match self.rotation:
            case "left-symmetric" | "left-asymmetric" | "ddf-N-continue":
                p = n - 1 - stripe % n
            case "right-symmetric" | "right-asymmetric" | "ddf-zero-restart":
                p = stripe % n
            case "ddf-N-restart":
                # As left-asymmetric, but the first stripe is D D D P Q rather than Q D D D P.
                p = n - 1 - (stripe + 1) % n
            case "parity-first":
                p = 0
            case _:
                p = n - m
        step = -1 if self.rotation == DDF_N_CONTINUE else 1
        return [(p + step * j) % n for j in range(m)]

    def data_places(self, row: int) -> list[int]:
        """Places in a span of a row's data strips in the order of the host's blocks."""
        n = self.width
        parity = self.parity_places(row)
        match self.rotation:
            case "left-symmetric" | "right-symmetric":
                first = (parity[-1] + 1) % n if parity else 0
            case "ddf-N-continue":
                first = (parity[0] + 1) % n
            case _:
                first = 0
        places = [(first + place) % n for place in range(n)]
        return [place for place in places if place not in parity]

    def turned(self, row: int) -> list[int]:
        """Places in a span in the order in which the hardware counts roles: round from the first
        after the parities."""
        n = self.width
        parity = self.parity_places(row)
        last = parity[0] if self.rotation == DDF_N_CONTINUE else parity[-1] if parity else n - 1
        return [(last + 1 + role) % n for role in range(n)]

    def exponents(self, row: int) -> list[int]:
        """Exponents by the hardware's data roles. A block with exponent x weighs g**x in Q and
        g**2x in R."""
        roles = range(self.data)
        return self.turned(row)[: self.data] if self.rotation in DDF else list(roles)

    def syndromes(self, row: int) -> list[int]:
        """The syndrome (0: P) of each of the hardware's parity roles."""
        parity = self.parity_places(row)
        return [parity.index(place) for place in self.turned(row)[self.data :]]

    def roles(self, span: int, row: int) -> list[int]:
        """Member indexes of a row's roles in the hardware's order: data, then parities. Not for
        mirrors."""
        return [span * self.width + place for place in self.turned(row)]

    def copies_of(self, block: int) -> list[Place]:
        """Every place that holds array block ``block``."""
        strip, within = divmod(block, self.strip_blocks)
        if self.copies > 1:
            places = []
            for copy in range(self.copies):
                stripe, place = divmod(strip * self.copies + copy, self.width)
                places.append(Place(place, stripe * self.strip_blocks + within))
            return places
        row_set, index = divmod(strip, self.data)
        stripe, span = divmod(row_set, self.spans)
        row = stripe * self.strip_blocks + within
        return [Place(span * self.width + self.data_places(row)[index], row)]

    def map(self, block: int) -> Place:
        """The place of array block ``block`` (of its first copy)."""
        return self.copies_of(block)[0]

    def inverse(self, place: Place) -> int | None:
        """The array block at ``place``, or None for parity."""
        stripe, within = divmod(place.row, self.strip_blocks)
        if self.copies > 1:
            strip = (stripe * self.width + place.position) // self.copies
            return strip * self.strip_blocks + within
        span, offset = divmod(place.position, self.width)
        if offset in self.parity_places(place.row):
            return None
        index = self.data_places(place.row).index(offset)
        return ((stripe * self.spans + span) * self.data + index) * self.strip_blocks + within

    def rows_at(self, row: int, rows: int) -> list[tuple[int, int]]:
        """(base, shift) of each row of the stripe engine to which member blocks ``row`` belong.

        With parity there is one of each span. Without it there is one of each strip whose first
        copy is in the row. ``rows`` are the rows of the array.
        """
        if self.parities:
            first = self.turned(row)[0]
            return [(span * self.width, first) for span in range(self.spans)]
        found = []
        for place in range(self.width):
            block = self.inverse(Place(place, row))
            assert block is not None
            if block < self.blocks(rows) and self.map(block) == Place(place, row):
                found.append((0, place))
        return found

    def key(self, block: int) -> tuple[int, int, int, int]:
        """(base, shift, index, row) that identify array block ``block`` between blocks of hardware.
        """
        place = self.map(block)
        if self.copies > 1:
            # The first copies that begin in a stripe are `copies` places apart.
            return 0, place.position % self.copies, place.position // self.copies, place.row
        span, offset = divmod(place.position, self.width)
        turned = self.turned(place.row)
        return span * self.width, turned[0], turned.index(offset), place.row

    def ordinal(self, block: int) -> int:
        """The number of the strip of ``block`` in its stripe, in the order of the host's blocks."""
        strip = block // self.strip_blocks
        if self.copies > 1:
            return strip * self.copies % self.width // self.copies
        return strip % self.data

    def extents(self, block: int, count: int, *, write: bool) -> list[Extent]:
        """The extents that ``count`` array blocks from ``block`` touch, strip by strip, in order.

        Extents of a write are cut where ``final`` changes. Extents of a read never are.
        """
        keys = [self.key(block + offset) for offset in range(count)]
        rows = [(base, row) for base, _, _, row in keys]
        runs: list[list[int]] = []
        for offset in range(count):
            strip = (block + offset) // self.strip_blocks
            final = not write or rows[offset] not in rows[offset + 1 :]
            if runs and runs[-1][2:] == [strip, final]:
                runs[-1][1] += 1
            else:
                runs.append([offset, 1, strip, final])
        return [
            Extent(
                *keys[offset],
                ordinal=self.ordinal(block + offset),
                blocks=length,
                offset=offset,
                final=bool(final),
                last=offset + length == count,
            )
            for offset, length, _, final in runs
        ]
