"""A simulated world: virtual time, network and disks inside one trio run."""
