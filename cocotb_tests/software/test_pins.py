"""docs/pins.md names every port of the controller and every payload field of a drive port."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from amaranth.hdl import Shape
from amaranth.lib import data, wiring

from hdl.config import Config, board
from hdl.controller import Controller
from hdl.flow.drive_port import DrivePort
from hdl.pcie.phy.series7 import Series7Shim
from hdl.pcie.phy.ultrascale import UltrascaleShim
from sim.checkout import ROOT

PAGE = (ROOT / "docs" / "pins.md").read_text()

NARROW = replace(board(), data_width=128, completion_address_bits=7)
"""`board` behind a 7-series block."""

BACKED = replace(board(), backup_blocks=1024)
"""`board` with a backup unit."""

STREAMS = ("command", "grant", "write_data", "read_data", "completion")


def tables(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the tables under ``heading``, by the name in their first cell."""
    rows = {}
    inside = False
    for line in page.splitlines():
        if line.startswith("#"):
            inside = line.lstrip("#").strip() == heading
        elif inside and line.startswith("| `"):
            name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
            assert name not in rows, f"{name} is there twice"
            rows[name] = cells
    return rows


def ports(signature: wiring.Signature, above: str = "") -> Iterator[tuple[str, str, int]]:
    """Name, direction and width of each port, of drive ports under the number n."""
    for name, member in signature.members.items():
        full = above + name + ("__n" if member.dimensions else "")
        if member.is_port:
            direction = "out" if member.flow is wiring.Out else "in"
            yield full, direction, Shape.cast(member.shape).width
        else:
            yield from ports(member.signature, f"{full}__")


def fields(stream: str, config: Config) -> dict[str, tuple[str, str]]:
    """Bits and width of each field of the payload of ``stream`` of a drive port."""
    layout = DrivePort(config).members[stream].signature.members["payload"].shape
    assert isinstance(layout, data.StructLayout)
    found = {}
    for name, field in layout:
        width = Shape.cast(field.shape).width
        found[name] = f"{field.offset + width - 1}:{field.offset}", str(width)
    return found


def flaws(page: str, shim: type, config: Config) -> list[str]:
    """Ports of the controller behind ``shim`` that ``page`` tells wrongly, or not at all."""
    edge = "PCIe: UltraScale+" if shim is UltrascaleShim else "PCIe: 7 series"
    shared = ["Clock and reset", "Configuration space", "Time, names, temperature"]
    shared += ["Backup unit"] if config.backup_blocks else []
    told = {name: row for heading in (edge, *shared) for name, row in tables(page, heading).items()}
    drive = tables(page, "Drive ports")
    clocks = [("clk", "in", 1), ("rst", "in", 1)]
    found = []
    expected = [*ports(Controller(config=config, shim=shim).signature), *clocks]
    for name, direction, width in expected:
        row = drive.get(name) if name.startswith("drives__") else told.get(name)
        place = 2 if name.startswith("drives__") and config.data_width == 128 else 1
        if row is None or (row[0], row[place]) != (direction, str(width)):
            found.append(f"{name}: {direction}, {width} bits, and not {row}")
    names = {name for name, _, _ in expected}
    return found + [f"{name}: there is none" for name in sorted({*told, *drive} - names)]


@pytest.mark.parametrize(
    ("shim", "config"),
    [(UltrascaleShim, board()), (Series7Shim, NARROW), (UltrascaleShim, BACKED)],
    ids=["usp", "s7", "backup"],
)
def test_every_port_is_named(shim, config):
    """With its direction and width; and no other is."""
    assert flaws(PAGE, shim, config) == []


@pytest.mark.parametrize("stream", STREAMS)
def test_every_field_is_named(stream):
    """With its bits and width, at 256 and at 128 bits."""
    rows = tables(PAGE, stream)
    wide, narrow = fields(stream, board()), fields(stream, NARROW)
    assert set(rows) == set(wide)
    for name, cells in rows.items():
        assert tuple(cells[:2]) == wide[name], name
        assert tuple(cells[2:4] if len(cells) > 3 else cells[:2]) == narrow[name], name


def test_flaws_are_found():
    """A row that is missing, one that is wrong, and one of a port that is not there."""
    missing = re.sub(r"\| `rq_tlast`.*\n", "", PAGE)
    wrong = PAGE.replace("| `now` | in | 48 |", "| `now` | in | 47 |")
    more = PAGE.replace("| `nonce` |", "| `nonsense` | in | 1 | |\n| `nonce` |")
    for page, name in ((missing, "rq_tlast"), (wrong, "now"), (more, "nonsense")):
        assert page != PAGE
        (flaw,) = flaws(page, UltrascaleShim, board())
        assert flaw.startswith(f"{name}:")
