"""Command lines of the project's programs."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that answers bad arguments with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Prints one line to standard error and exits."""
        self.exit(2, f"{self.prog}: {message}\n")


def positive(text: str) -> int:
    """A number from 1 on, as a type of an argument."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text!r}")
    return value
