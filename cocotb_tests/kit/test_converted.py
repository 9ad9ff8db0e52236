"""Designs are converted once, and anew once anything is patched."""

import pytest
from amaranth.hdl import Module

from cocotb_tests.runner import MOST_CONVERTED, converted
from hdl.kit.queue import Queue

BITS = 16


def test_a_design_is_converted_once():
    first = converted(Queue, shape=BITS, depth=4)
    assert converted(Queue, depth=4, shape=BITS) is first
    assert converted(Queue, shape=BITS, depth=8) != first


def test_the_last_ones_are_kept():
    first = converted(Queue, shape=1, depth=4)
    for width in range(2, MOST_CONVERTED + 1):
        converted(Queue, shape=width, depth=4)
    assert converted(Queue, shape=1, depth=4) is first
    for width in range(2, MOST_CONVERTED + 2):
        converted(Queue, shape=width, depth=4)
    again = converted(Queue, shape=1, depth=4)
    assert again is not first and again == first


def test_what_is_patched_is_converted_anew():
    first = converted(Queue, shape=BITS, depth=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "elaborate", lambda self, platform: Module())
        assert converted(Queue, shape=BITS, depth=4) != first
    assert converted(Queue, shape=BITS, depth=4) == first
