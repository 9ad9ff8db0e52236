"""What all native tests have in common."""

import pytest


@pytest.fixture(autouse=True)
def _says_seed(request: pytest.FixtureRequest) -> None:
    """A test that is random says its seed."""
    if (seed := getattr(request.module, "SEED", None)) is not None:
        print(f"SEED={seed}")
