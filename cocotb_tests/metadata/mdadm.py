"""Runs mdadm on files, which needs no kernel."""

import shutil
import subprocess

import pytest

MDADM = shutil.which("mdadm", path="/usr/sbin:/sbin:/usr/bin:/bin")
needs_mdadm = pytest.mark.skipif(
    MDADM is None, reason="mdadm: install it with: apt-get install mdadm"
)


def mdadm(*arguments: str) -> str:
    """What it prints."""
    return subprocess.run(
        [str(MDADM), *arguments], capture_output=True, text=True, check=True
    ).stdout
