"""The console's pure core: checks of requests, how records are shown, rates, and the timeline of a local cluster."""
