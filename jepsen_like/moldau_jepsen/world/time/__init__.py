"""Virtual time: the scheduler, the timeline, clocks of nodes, paused processes."""
