"""Writes docs/layouts.md: a drawing of every layout, from the reference models.

    python -m sim.golden.layouts > docs/layouts.md
"""

from collections.abc import Iterator

from sim.golden.layout import (
    DDF,
    LEAST_DRIVES,
    MAX_DRIVES,
    PARITIES,
    ROTATIONS,
    SYNDROMES,
    Layout,
    Place,
    rotations,
)

COMMAND = "python -m sim.golden.layouts > docs/layouts.md"

INTRODUCTION = f"""\
# Layouts

This page shows where the strips of an array lie. The reference models (`sim/golden/layout.py`) draw
it with `{COMMAND}`. A test fails when the page is stale.

`cocotb_tests/array/test_mapper.py` and the proofs of `sim/formal/prove_mapper.py` compare the
hardware with the same models. `cocotb_tests/array/test_md.py` compares the models, parity included,
with the data that Linux md writes. md has no triple parity, so that is compared with Intel ISA-L.

Each column is a drive and each line is a stripe. `D0`, `D1`, .. are the strips of the array in the
order of the host's blocks. P, Q and R are the parities of the line. Strips are 4 KiB to 1 MiB, a
power of two. Data begins 1 MiB into each drive.
"""

LEVELS = {
    "RAID0": "striping",
    "RAID1": "2 to n copies; all drives by default",
    "RAID10": "near copies, 2 by default; on a number of drives that the copies do not divide: "
    "RAID 1E",
    "RAID5": "one parity; with spans RAID 50; with parity-last RAID 4",
    "RAID6": "two parities; with spans RAID 60",
    "RAIDTP": "three parities",
    "JBOD": "one drive as it is",
}

CODES = {
    "left-symmetric": 0,
    "right-symmetric": 1,
    "left-asymmetric": 2,
    "right-asymmetric": 3,
    "parity-last": 4,
    "parity-first": 5,
    "ddf-N-continue": 8,
    "ddf-N-restart": 10,
    "ddf-zero-restart": 11,
}
"""Codes of rotations in CREATE ARRAY (docs/host-interface.md)."""

SNIA = {
    "left-symmetric": "RAID 5: PRL 5, RLQ 3, rotating parity N with data continuation",
    "right-symmetric": "rotating parity 0 with data continuation",
    "left-asymmetric": "RAID 5: PRL 5, RLQ 2, rotating parity N with data restart",
    "right-asymmetric": "RAID 5: PRL 5, RLQ 0, rotating parity 0 with data restart",
    "parity-first": "RAID 4: PRL 4, RLQ 0",
    "parity-last": "RAID 4: PRL 4, RLQ 1",
    "ddf-zero-restart": "PRL 6, RLQ 1, rotating parity 0 with data restart",
    "ddf-N-restart": "PRL 6, RLQ 2, rotating parity N with data restart",
    "ddf-N-continue": "PRL 6, RLQ 3, rotating parity N with data continuation",
}
"""Names of rotations in SNIA's Disk Data Format."""

DRAWN = (
    ("RAID 5", "RAID5", 5),
    ("RAID 6", "RAID6", 6),
    ("Triple parity", "RAIDTP", 6),
)


def drawing(layout: Layout, stripes: int) -> list[list[str]]:
    """A line for each stripe of one-block strips: `D` and a number, or P, Q, R."""
    lines = []
    for row in range(stripes):
        names = [""] * layout.drives
        for span in range(layout.spans if layout.parities else 0):
            for syndrome, place in enumerate(layout.parity_places(row)):
                names[span * layout.width + place] = SYNDROMES[syndrome]
        for position, name in enumerate(names):
            if not name:
                names[position] = f"D{layout.inverse(Place(position, row))}"
        lines.append(names)
    return lines


def table(layout: Layout, stripes: int) -> str:
    """The drawing as text."""
    return "\n".join(
        " ".join(f"{name:>4}" for name in line).rstrip() for line in drawing(layout, stripes)
    )


def weights(layout: Layout, stripes: int) -> str:
    """The exponent of each block's weight in Q, the parities left out."""
    lines = []
    for row in range(stripes):
        names = [""] * layout.width
        for place, exponent in zip(layout.turned(row), layout.exponents(row), strict=False):
            names[place] = str(exponent)
        for syndrome, place in enumerate(layout.parity_places(row)):
            names[place] = SYNDROMES[syndrome]
        lines.append(" ".join(f"{name:>4}" for name in names))
    return "\n".join(lines)


def sections() -> Iterator[str]:
    """The page, a paragraph at a time."""
    yield INTRODUCTION
    lines = ["| level | | drives of a span | parities |", "|---|---|---|---|"]
    for level, text in LEVELS.items():
        most = 1 if level == "JBOD" else MAX_DRIVES
        least = LEAST_DRIVES[level]
        drives = f"{least} to {most}" if least < most else str(least)
        lines.append(f"| {level} | {text} | {drives} | {PARITIES[level]} |")
    yield "\n".join(lines) + "\n"
    yield "## Rotations\nThe code is the field of the command that creates an array.\n"
    lines = ["| rotation (mdadm's name) | code | levels | SNIA DDF |", "|---|---|---|---|"]
    for rotation in ROTATIONS:
        levels = [level for level in LEVELS if PARITIES[level] and rotation in rotations(level)]
        lines.append(f"| {rotation} | {CODES[rotation]} | {', '.join(levels)} | {SNIA[rotation]} |")
    yield "\n".join(lines) + "\n"
    yield (
        "The weight of a block in Q is a power of g. The exponent is the order of the block\n"
        "after the last parity, counted round the span. In R the exponent is twice that. In the\n"
        "three ddf layouts the exponent is the place of the block in the span.\n"
    )
    for title, level, drives in DRAWN:
        yield f"## {title} on {drives} drives\n"
        for rotation in rotations(level):
            layout = Layout(level, drives, 1, rotation=rotation)
            stripes = 2 if rotation.startswith("parity") else drives + 1
            yield f"### {title}, {rotation}\n```\n{table(layout, stripes)}\n```\n"
            if rotation in DDF:
                yield f"Exponents in Q:\n```\n{weights(layout, stripes)}\n```\n"
    yield "## Mirrors and stripes\n"
    for title, layout in (
        ("RAID 0 on 4 drives", Layout("RAID0", 4, 1)),
        ("RAID 1 on 3 drives", Layout("RAID1", 3, 1)),
        ("RAID 10 on 4 drives", Layout("RAID10", 4, 1)),
        ("RAID 1E on 5 drives", Layout("RAID10", 5, 1)),
        ("RAID 10 with 3 copies on 7 drives", Layout("RAID10", 7, 1, 3)),
    ):
        yield f"### {title}\n```\n{table(layout, 4)}\n```\n"
    yield "## Spans\nSuccessive stripes go to successive spans. Each span is a layout of its own.\n"
    for title, layout in (
        ("RAID 50, 2 spans of 4 drives", Layout("RAID5", 8, 1, spans=2)),
        ("RAID 60, 2 spans of 5 drives", Layout("RAID6", 10, 1, spans=2)),
    ):
        yield f"### {title}\n```\n{table(layout, layout.width + 1)}\n```\n"


def page() -> str:
    """The whole page."""
    return "\n".join(sections())


if __name__ == "__main__":
    print(page(), end="")
