"""Clock, links and sessions of a simulation, in virtual time."""
