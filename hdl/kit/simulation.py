"""What is there only where a design is simulated: checks of what must never be."""

SIMULATION = "simulation"
"""The platform for which `sim.verilog.to_verilog` elaborates.

Where ``platform`` is this, a component adds assertions, and the state that they need, that are no
part of the hardware.
"""
