"""What every test needs, said in a line before the first one runs."""

import argparse
import os
import tempfile

import pytest

from sim.cli import seed
from sim.verilog import BUILD


def pytest_configure() -> None:
    """Refuses a ``SEED`` that is none, and a checkout in which nothing can be built."""
    if text := os.environ.get("SEED"):
        try:
            seed(text)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"SEED {error}") from None
    try:
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=BUILD):
            pass
    except OSError as error:
        raise pytest.UsageError(f"nothing can be built in this checkout: {error}") from None
