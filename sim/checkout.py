"""This checkout: where it is, and whether anything can be built. Nothing of the design is imported.
"""

import errno
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

BUILD = ROOT / "build"
"""The directory of everything that can be made again."""


def check_checkout() -> None:
    """Raises `OSError` if nothing can be built in this checkout, with what is wrong."""
    if any(character.isspace() for character in str(ROOT)):
        # make and the simulators' makefiles divide names at spaces.
        told = "the checkout must lie in a directory without spaces in its name"
        raise OSError(errno.EACCES, told, str(ROOT))
    try:
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=BUILD):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"nothing can be built in this checkout ({error.strerror})", str(BUILD)
        ) from None
