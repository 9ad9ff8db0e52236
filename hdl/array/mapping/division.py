"""Division by a number of drives, most significant digit first."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.flow.geometry import WIDTH_BITS

DIGIT_BITS = 4
"""Quotient bits a cycle."""

REMAINDER_BITS = WIDTH_BITS - 1
"""Divisors are 1..32, so remainders are 0..31."""


class DivideDigit(wiring.Component):
    """One digit of a long division: (16 * ``remainder`` + ``digit``) / ``divisor``.

    Feed the digits of a number from the most significant one. The quotient's digits appear in the
    same order, so divisions chain. The next one starts a cycle later, not when this one has ended.
    Combinational, four compare-and-subtract steps of 6 bits.

    Ports
    -----
    remainder
        0 for the first digit, then ``rest`` of the digit before. Must be less than ``divisor``.
    digit
        A digit of the dividend.
    divisor
        What is divided by. With 0 the answer has no meaning.
    quotient
        A digit of the quotient.
    rest
        What is left for the next digit.
    """

    remainder: In(REMAINDER_BITS)
    digit: In(DIGIT_BITS)
    divisor: In(WIDTH_BITS)
    quotient: Out(DIGIT_BITS)
    rest: Out(REMAINDER_BITS)

    def elaborate(self, platform) -> Module:
        m = Module()
        rest = self.remainder
        for bit in reversed(range(DIGIT_BITS)):
            trial = Signal(WIDTH_BITS, name=f"trial_{bit}")
            fits = Signal(name=f"fits_{bit}")
            next_rest = Signal(REMAINDER_BITS, name=f"rest_{bit}")
            m.d.comb += [
                trial.eq(Cat(self.digit[bit], rest)),
                fits.eq(trial >= self.divisor),
                next_rest.eq(Mux(fits, trial - self.divisor, trial)),
                self.quotient[bit].eq(fits),
            ]
            rest = next_rest
        m.d.comb += self.rest.eq(rest)
        return m
