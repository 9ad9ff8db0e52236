"""The configuration of a parity test's process."""

from hdl.config import Config


def config_of(environment) -> Config:
    """The configuration that a test's process was started with."""
    return Config(data_width=int(environment["DATA_WIDTH"]), parities=int(environment["PARITIES"]))
