"""Planted bugs in the controller of the simulated card."""

from functools import partial

import pytest
from amaranth.hdl import Module

from hdl.array.references import References
from hdl.config import Config
from hdl.controller import Controller
from sim.native.harness import Harness


def plant(monkeypatch: pytest.MonkeyPatch, place: str, bug: type) -> None:
    """From now on cards are built with ``bug`` for the component that is named ``place``."""
    monkeypatch.setattr(place, bug)

    def planted(config: Config, **options) -> Harness:
        return Harness(config, **options | {"component": partial(Controller, config=config)})

    monkeypatch.setattr("sw.driver.card.Harness", planted)


class WaitsForNobody(References):
    """Planted bug: changes of the tables do not wait for those who are inside."""

    def _wait(self, m: Module) -> None:
        for state in ("WAIT-COMMANDS", "WAIT-ROWS"):
            with m.State(state):
                m.next = "ANSWER"
