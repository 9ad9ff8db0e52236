"""Drives of the card in a Linux PC.

    .venv/bin/python -m sw.raidctl export DRIVE [DRIVE ...] [--mdadm | --dm]

``export`` prints what Linux needs to have the volumes of the arrays that the drives belong to:
lines for mdadm.conf, then tables for device-mapper as ``NAME: TABLE``. A DRIVE is a block device or
an image of all its blocks. Nothing is written to it. What the user has to know goes to standard
error. The program ends with status 1 if an array lacks what Linux needs to start it, and has no
table for it then. With one of ``--mdadm`` and ``--dm`` only that part is printed:

    python -m sw.raidctl export --mdadm /dev/sd[b-e] >> /etc/mdadm/mdadm.conf
    mdadm --assemble --scan
    python -m sw.raidctl export --dm /dev/sd[b-e] |
        while IFS=: read -r name table; do dmsetup create "$name" --table "$table"; done
"""

import sys

from sim.cli import Parser, program, reason
from sim.golden.superblock import RefusedSuperblockError
from sw.raidctl.drives import Drive, read_drive
from sw.raidctl.export import export

LACKS = 1


def main() -> int:
    """Command line."""
    parser = Parser(prog="raidctl", description="Drives of the card in a Linux PC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser(
        "export",
        help="lines for mdadm.conf and tables for device-mapper",
        description="What Linux needs to have the volumes of the arrays that drives belong to: "
        "lines for mdadm.conf, then tables for device-mapper as NAME: TABLE. Nothing is written.",
    )
    one.add_argument("drives", nargs="+", metavar="DRIVE", help="a block device or an image")
    parts = one.add_mutually_exclusive_group()
    parts.add_argument("--mdadm", action="store_true", help="only the lines for mdadm.conf")
    parts.add_argument("--dm", action="store_true", help="only the tables for device-mapper")
    arguments = parser.parse_args()
    drives: list[Drive] = []
    for name in dict.fromkeys(arguments.drives):
        try:
            drives.append(read_drive(name))
        except RefusedSuperblockError as error:
            print(f"raidctl: {name}: {error}", file=sys.stderr)
        except OSError as error:
            one.error(reason(error))
    found = export(drives)
    for remark in found.remarks:
        print(f"raidctl: {remark}", file=sys.stderr)
    if not found.lines:
        print("raidctl: no drive belongs to an array that Linux can have", file=sys.stderr)
        return LACKS
    if not arguments.dm:
        print("\n".join(found.lines))
    if not arguments.mdadm:
        for name, table in found.tables:
            print(f"{name}: {table}")
    return LACKS if found.lacks else 0


if __name__ == "__main__":
    sys.exit(program("raidctl", main, builds=False))
