"""Linux md as a reference: arrays that a real kernel writes on plain image files.

The kernel is Debian's user-mode Linux, an ordinary program, so neither root nor a virtual machine
is needed: `sim.md.machine` runs it, `sim.md.guest` is what runs inside, `sim.md.arrays` says which
arrays to create and reads their images.
"""
