"""A simulated card with its driver. Tools use it to bring one up in a line."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from amaranth.lib import wiring

from hdl.config import Config
from sim.native.harness import Harness
from sim.native.parameters import DriveParameters, Expander, LinkParameters
from sw.driver.native import NativeTransport
from sw.driver.nvme import Nvme

MEMORY_BYTES = 256 << 20


class SimulatedCard:
    """The native harness, the transport and the driver together; a context manager.

    Parameters
    ----------
    config
        Sizes of the controller.
    drives
        One drive a port.
    link, expanders, jumping, seed, identity, component
        As for `Harness`.
    memory_bytes
        Host memory.
    """

    def __init__(
        self,
        config: Config,
        drives: Sequence[DriveParameters | None],
        *,
        link: LinkParameters | None = None,
        expanders: Sequence[Expander] = (),
        memory_bytes: int = MEMORY_BYTES,
        jumping: bool = True,
        seed: int = 1,
        begin: int = 0,
        identity: int | None = None,
        component: Callable[[], wiring.Component] | None = None,
    ):
        self.config = config
        self.harness = Harness(
            config,
            link=link,
            drives=drives,
            expanders=expanders,
            memory_bytes=memory_bytes,
            jumping=jumping,
            seed=seed,
            begin=begin,
            identity=identity,
            component=component,
        )
        self.transport = NativeTransport(self.harness, config.queue_pairs + 1)
        self.nvme = Nvme(self.transport)

    def __enter__(self) -> "SimulatedCard":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Frees the simulation. Coroutines that wait are not told."""
        self.transport.close()
        self.harness.close()

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine to its end in simulated time and returns its result."""
        return self.transport.run(main)
