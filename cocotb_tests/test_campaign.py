"""The campaign of random faults: a few runs, and what its checks must find."""

import os
import re
import sys

import pytest

import sim.campaign.__main__ as command
from sim.campaign.budget import Budget
from sim.campaign.run import Run, Stuck
from sim.golden.layout import Layout

SEED = int(os.environ.get("SEED") or "1")


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_nothing_is_lost(seed):
    outcome = Run(seed).run()
    print(f"SEED={seed}: {outcome}")
    assert outcome.commands >= 100 and sum(outcome.faults.values())


@pytest.mark.parametrize(
    ("level", "drives", "options", "tolerates"),
    [
        ("RAID0", 4, {}, 0),
        ("RAID1", 3, {}, 2),
        ("RAID5", 4, {}, 1),
        ("RAID6", 6, {}, 2),
        ("RAIDTP", 6, {}, 3),
    ],
)
def test_budget(level, drives, options, tolerates):
    """As many drives as the level says, or one bad block less in a row."""
    layout = Layout(level, drives, 2, **options)
    for bad in (0, 1):
        budget = Budget(layout, 4)
        if bad and not budget.admits(bad=[(drives - 1, 2)]):
            assert not tolerates
            continue
        admitted = sum(budget.admits(drives=[position]) for position in range(drives - 1))
        assert admitted == max(0, tolerates - bad)
        lost = [block for block in range(layout.blocks(4)) if not budget.readable(block)]
        assert not lost and budget.tolerated()


def test_tampering_is_found():
    """A bit that changes on a drive."""
    found = r"copies of block \d+ differ|block \d+ in .* is wrong"
    with pytest.raises(AssertionError, match=found):
        Run(1, tamper=True).run()


def test_a_standstill_is_found(monkeypatch):
    """No command ends while a drive hangs, if nobody waits for the ladder."""
    monkeypatch.setattr("sim.campaign.run.STUCK_NS", 300_000)
    with pytest.raises(Stuck, match="no command has ended"):
        Run(3).run()


def test_command_line(monkeypatch, capsys):
    """A bad number is one line; a failing run says how to repeat it."""
    monkeypatch.setattr(sys, "argv", ["campaign", "--runs", "0"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("sim.campaign.run.STUCK_NS", 300_000)
    monkeypatch.setattr(sys, "argv", ["campaign", "--runs", "4", "--seed", "2", "--processes", "1"])
    assert command.main() == 1
    assert "repeat with: make campaign RUNS=1 SEED=" in capsys.readouterr().err


def test_processes(monkeypatch, capsys):
    """Two runs at once have the counts of one after the other."""
    ends = []
    for processes in ("1", "2"):
        options = ["--runs", "2", "--seed", str(SEED + 4), "--processes", processes]
        monkeypatch.setattr(sys, "argv", ["campaign", *options])
        assert command.main() == 0
        ends.append(re.sub(r"in .* s \(.*\)", "", capsys.readouterr().out))
    assert ends[0] == ends[1] and "nothing lost" in ends[0]
