"""The console's pure core: who may call it, how records are shown, rates, and the timeline of a local cluster."""
