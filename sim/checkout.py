"""This checkout: where it is, and whether anything can be built. Nothing of the design is imported.
"""

import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

BUILD = ROOT / "build"
"""The directory of everything that can be made again."""


class UnusableCheckoutError(Exception):
    """Nothing can be built in this checkout. The message is a line that says why."""


def check_checkout() -> None:
    """Raises `UnusableCheckoutError` if nothing can be built in this checkout."""
    if any(character.isspace() for character in str(ROOT)):
        # make and the simulators' makefiles divide names at spaces.
        raise UnusableCheckoutError(
            f"the checkout must lie in a directory without spaces in its name, not in '{ROOT}'"
        )
    try:
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=BUILD):
            pass
    except OSError as error:
        raise UnusableCheckoutError(f"nothing can be built in this checkout: {error}") from None
