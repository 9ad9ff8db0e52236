"""What every test needs, said in a line before the first one runs; what was run, after the last."""

import argparse
import os
from collections.abc import Callable
from functools import wraps

import pytest

from cocotb_tests.runner import RUN_MARK, forget_converted
from sim.checkout import UnusableCheckoutError, check_checkout
from sim.cli import seed

MOST_RUNS = 20
"""Runs that are listed one by one."""


def pytest_configure() -> None:
    """Refuses a ``SEED`` that is none, other ``WAVES`` than 0 and 1, and a checkout in which
    nothing can be built."""
    if text := os.environ.get("SEED"):
        try:
            seed(text)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"SEED {error}") from None
    if (waves := os.environ.get("WAVES", "")) not in ("", "0", "1"):
        raise pytest.UsageError(f"WAVES must be 0 or 1, not {waves!r}")
    try:
        check_checkout()
    except UnusableCheckoutError as error:
        raise pytest.UsageError(str(error)) from None
    for name in ("setattr", "setitem", "undo"):
        method = getattr(pytest.MonkeyPatch, name)
        setattr(pytest.MonkeyPatch, name, _forgetting(method))


def _forgetting(method: Callable) -> Callable:
    """What it does to a module may change designs, so none that was converted is used again."""

    @wraps(method)
    def forget(*args, **options):
        forget_converted()
        return method(*args, **options)

    return forget


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the whole controller come first, since they take longest."""
    items.sort(key=lambda item: "/system/" not in str(item.path))


def pytest_terminal_summary(terminalreporter) -> None:
    """Seed, log and waves of each simulation that has passed, if they are few; failures say so
    themselves."""
    passed = terminalreporter.getreports("passed")
    runs = [line for report in passed for line in report.capstdout.splitlines() if RUN_MARK in line]
    if 0 < len(runs) <= MOST_RUNS:
        terminalreporter.section("simulations", sep="-")
        for line in runs:
            terminalreporter.line(line)
    elif runs:
        terminalreporter.line(f"{len(runs)} simulations; their logs are in build/runs")
