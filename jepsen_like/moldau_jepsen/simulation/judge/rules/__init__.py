"""Rules that are judged on single facts, where a broken protocol shows first and long before clients see any loss.

Each module is a judge of facts that knows nothing of how nodes are made, so that a story of facts tests it;
``watcher`` reads the facts off the nodes of a simulated cluster.

======================= ==============================================================================================
one-vote                a voter gives one vote per epoch, and its epoch never falls (Raft 5.2)
vote-kept               a vote that was durable is there after any crash (Raft 5.2)
committed-is-durable    what a leader of the quorum counts as committed is on the disks of most voters (Raft 5.3)
fenced-is-out           a fenced broker leads nothing and is in no ISR (KIP-841)
session-honoured        a broker that is silent for far longer than its session is fenced (KIP-631)
elr-kept                who leaves an ISR that is too small stays eligible, unless its state may be lost (KIP-966)
elr-earned              eligible is only who was in sync or eligible before, and none while the ISR is large enough
unclean-restart         a broker that ended in disorder comes back neither in sync nor eligible (KIP-966)
isr-change-asked        who joins an ISR was proposed by the leader on top of the very state that is changed (KIP-497)
isr-incarnation         who joins an ISR is in the same life of its broker as when the leader saw it (KIP-903)
clean-election          a leader comes from the ISR or the ELR unless unclean election is allowed
truncation-keeps        no in-sync replica cuts its log below what was committed (KIP-101)
producer-sequence       in a partition a producer's sequence numbers follow each other without gap or repetition
producer-epoch          in a partition a producer's epoch never falls (KIP-98, KIP-890)
one-owner               one member of a group owns a partition in a generation
generation-monotone     a group's generation never falls
offset-kept             a group commits nothing below what was committed when its generation began
transaction-state       a transactional id moves through its states as KIP-98 has them; its epoch never falls
transaction-outcome     a marker says what the coordinator had decided, and comes before the next transaction
answered-once           a request is answered once, whatever completes it (judged on the wire by ``coverage``)
compaction-keeps        the last value of a key survives cleaning
retention-keeps         deletion by size leaves at least ``retention.bytes``, and stays below the high watermark
======================= ==============================================================================================
"""
