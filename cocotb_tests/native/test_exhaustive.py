"""Cuts of the power at every moment at which something becomes durable, or is told."""

import sys
from collections import Counter
from functools import partial

import pytest
from amaranth.hdl import Module

from hdl.controller import Controller
from hdl.flow.geometry import Level
from hdl.metadata.keeper import Keeper
from hdl.stripe.planning.row_planning import RowPlanning
from powercut import exhaustive
from powercut.exhaustive import CONFIG, STEPS, Done, Drill, Task
from sim.cli import BAD_ARGUMENTS, INTERRUPTED


def run(monkeypatch, *arguments: str) -> int:
    """The exit status of the program."""
    monkeypatch.setattr(sys, "argv", ["powercut.exhaustive", *arguments, "--processes", "1"])
    return exhaustive.main()


def test_every_sequence_is_there():
    found = exhaustive.sequences(2)
    assert len(found) == len(set(found)) == 6 + 36
    assert found[:6] == [(step,) for step in STEPS]
    assert len(exhaustive.sequences(3)) == 6 + 36 + 216


def test_a_moment(monkeypatch, capsys):
    """The end of the rehearsal is a cut as well."""
    arguments = ("--levels", "RAID1", "--steps", "part", "--moment", "9", "--verbose")
    assert run(monkeypatch, *arguments) == 0
    said = capsys.readouterr().out
    assert "RAID1: part: 2 cuts" in said
    assert "1 sequences, 2 cuts in " in said and "nothing lost" in said


@pytest.mark.slow
@pytest.mark.parametrize("level", exhaustive.LEVELS, ids=lambda level: level.name)
def test_every_moment(level):
    """Of all steps one after the other."""
    done = exhaustive.drill(Task(level=level, steps=STEPS, seed=1))
    assert not done.error, (done.moment, done.trace)
    print(dict(done.seen))
    assert done.seen["cuts"] > 60


def test_a_moment_that_there_is_not(monkeypatch, capsys):
    arguments = ("--levels", "RAID1", "--steps", "lost", "--moment", "999")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == BAD_ARGUMENTS
    assert "argument --moment: RAID1: lost has " in capsys.readouterr().err


def test_a_loss_is_told(monkeypatch, capsys):
    """With the level, the steps and the moment by which it happens again."""

    def fails(task: Task) -> Done:
        if task.steps == ("fua",):
            return Done(seen=Counter(cuts=3), moment=3, error="AssertionError: a block is lost")
        return Done(seen=Counter(cuts=7))

    monkeypatch.setattr(exhaustive, "build_controller", lambda config: None)
    monkeypatch.setattr(exhaustive, "drill", fails)
    assert run(monkeypatch, "--levels", "RAID6,JBOD", "--seed", "5") == 1
    said = capsys.readouterr()
    assert "AssertionError: a block is lost" in said.err
    again = "--levels RAID6 --steps fua --moment 3 --seed 5"
    assert f"repeat with: python -m powercut.exhaustive {again}" in said.err
    assert "5 sequences, 31 cuts in 0 s; one has failed" in said.out
    assert run(monkeypatch, "--levels", "RAID6,JBOD", "--keep-going") == 1
    assert "12 sequences, 76 cuts in 0 s; 2 have failed" in capsys.readouterr().out


def test_an_interruption_says_what_is_done(monkeypatch, capsys):
    def interrupted(task: Task) -> Done:
        if task.steps == ("part",):
            raise KeyboardInterrupt
        return Done(seen=Counter(cuts=7))

    monkeypatch.setattr(exhaustive, "build_controller", lambda config: None)
    monkeypatch.setattr(exhaustive, "drill", interrupted)
    assert run(monkeypatch, "--levels", "RAID5") == INTERRUPTED
    assert "1 sequences, 7 cuts in 0 s; interrupted" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--levels", "RAID7"),
        ("--steps", "part,none"),
        ("--moment", "3"),
        ("--longest", "0"),
        ("--cuts", "3"),
    ],
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == BAD_ARGUMENTS
    assert capsys.readouterr().err.count("\n") == 1


def cut_everywhere(level: Level, *steps: str) -> None:
    """Cuts the power at every moment of these steps, on a controller that is built anew."""
    drill = Drill(level, 1, component=partial(Controller, config=CONFIG))
    for moment in drill.rehearse(steps):
        drill.cut(steps, moment)


class NeverAsks(RowPlanning):
    """A planted bug: rows are written whatever the drives have marked."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._asks.eq(0)
        return m


class Acknowledges(Keeper):
    """A planted bug: writes are acknowledged before the loss of a drive is written down."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.withholds.eq(0)
        return m


@pytest.mark.slow
def test_rows_that_never_wait_for_marks_are_found(monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.sequencer.RowPlanning", NeverAsks)
    with pytest.raises(AssertionError, match="are torn"):
        cut_everywhere(Level.RAID1, "part")


@pytest.mark.slow
def test_early_acknowledgements_are_found(monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", Acknowledges)
    with pytest.raises(AssertionError, match=r" is Array\("):
        cut_everywhere(Level.RAID1, "part", "lost", "fua")
