"""One node on its machine: preparation and checks, the process, its watchdog, and its metrics over HTTP."""
