"""Another place of `hdl.kit.pick.RoundRobin`."""

from hdl.kit.pick import RoundRobin as RoundRobin
