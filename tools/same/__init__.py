"""Whether a change leaves the hardware as it was: netlists of two commits, without names."""
