"""Runs mdadm on files, which needs no kernel."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from sim.golden.superblock import SECTOR_BYTES

MDADM = shutil.which("mdadm", path="/usr/sbin:/sbin:/usr/bin:/bin")
needs_mdadm = pytest.mark.skipif(
    MDADM is None, reason="mdadm: install it with: apt-get install mdadm"
)


def mdadm(*arguments: str) -> str:
    """What it prints."""
    return subprocess.run(
        [str(MDADM), *arguments], capture_output=True, text=True, check=True
    ).stdout


def write_drive(path: Path, sectors: int, areas: Mapping[int, bytes]) -> None:
    """A drive of so many sectors that holds these bytes from these sectors on."""
    with path.open("wb") as file:
        file.truncate(sectors * SECTOR_BYTES)
        for sector, data in areas.items():
            file.seek(sector * SECTOR_BYTES)
            file.write(data)


def examined(tmp_path: Path, sectors: int, areas: Mapping[int, bytes]) -> dict[str, str]:
    """What `mdadm --examine` prints of a drive of so many sectors that holds these bytes from these
    sectors on."""
    image = tmp_path / "drive.img"
    write_drive(image, sectors, areas)
    told = mdadm("--examine", str(image))
    return dict(re.findall(r"^ *([\w -]+?) : (.*?) *$", told, re.MULTILINE))
