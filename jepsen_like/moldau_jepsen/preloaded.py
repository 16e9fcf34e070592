"""Is imported last by the server process of workers (``moldau_jepsen.workers``), and by nothing else.

It exempts all that the server has imported from garbage collection. Otherwise each worker would look at it again, which
takes longer than a small run.
"""

import gc

gc.collect()
gc.freeze()
