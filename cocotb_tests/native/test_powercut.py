"""The program that cuts the power: what it runs, prints and ends with."""

import sys
from collections import Counter

import pytest

from powercut import __main__ as powercut
from powercut.lives import Lives
from sim.cli import BAD_ARGUMENTS


def run(monkeypatch, *arguments: str) -> int:
    """The exit status of the program."""
    monkeypatch.setattr(sys, "argv", ["powercut", *arguments])
    return powercut.main()


def test_each_cut_is_of_some_card():
    assert powercut.tasks(7, 45) == [(7, 20), (8, 20), (9, 5)]
    assert powercut.tasks(7, 20) == [(7, 20)]


def test_cuts(monkeypatch, capsys):
    assert run(monkeypatch, "--cuts", "3", "--seed", "3", "--processes", "1") == 0
    said = capsys.readouterr().out
    assert "SEED=3" in said
    assert "1 cards, 3 cuts in " in said
    assert "less than 100.00%" in said
    assert "blocks stored" in said


def test_cuts_with_a_backup_unit(monkeypatch, capsys):
    arguments = ("--backup", "--cuts", "4", "--seed", "7002", "--processes", "1")
    assert run(monkeypatch, *arguments) == 0
    said = capsys.readouterr().out
    assert "1 cards, 4 cuts in " in said
    assert " saves" in said


def test_a_loss_is_told(monkeypatch, capsys):
    """What fails is told with its seed, by which it fails again."""

    def fails(lives: Lives) -> None:
        lives.seen["lives"] += 1
        assert lives.seed != 8 or lives.seen["lives"] < 4, "a block is lost"

    monkeypatch.setattr(powercut, "build_controller", lambda config: None)
    for name in ("live", "wake"):
        monkeypatch.setattr(Lives, name, fails)
    arguments = ("--seed", "7", "--cuts", "60", "--processes", "1")
    assert run(monkeypatch, *arguments) == 1
    said = capsys.readouterr()
    assert "AssertionError: a block is lost" in said.err
    assert "repeat with: make powercut CUTS=20 SEED=8" in said.err
    assert run(monkeypatch, *arguments, "--keep-going") == 1
    assert "2 cards, 40 cuts in 0 s; 1 more cards have failed" in capsys.readouterr().out
    assert powercut.live((8, 20)).error.startswith("AssertionError: a block is lost")


def test_an_interruption_says_what_is_done(monkeypatch, capsys):
    def interrupted(task: tuple[int, int]) -> powercut.Died:
        if task[0] == 2:
            raise KeyboardInterrupt
        return powercut.Died(seed=1, seen=Counter({"lives": 21}))

    monkeypatch.setattr(powercut, "build_controller", lambda config: None)
    monkeypatch.setattr(powercut, "live", interrupted)
    status = run(monkeypatch, "--cuts", "40", "--seed", "1", "--processes", "1")
    assert status == powercut.INTERRUPTED
    said = capsys.readouterr()
    assert "1 cards, 20 cuts in 0 s; interrupted" in said.out
    assert "interrupted after 1 of 2 cards" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cuts", "0"),
        ("--cuts", "many"),
        ("--seed", "-1"),
        ("--lives", "3"),
        ("--seed", "4294967295", "--cuts", "21"),
    ],
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == BAD_ARGUMENTS
    assert capsys.readouterr().err.count("\n") == 1
