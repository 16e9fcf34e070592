"""Rules on single facts, which reveal a broken protocol long before clients see a loss.

Each module judges facts and does not depend on how nodes are built, so tests can feed it a story of facts.
``watcher`` reads the facts from the nodes of a simulated cluster.

======================== =============================================================================================
one-vote                 a voter gives one vote per epoch, and its epoch never decreases (Raft 5.2)
vote-kept                a durable vote survives every crash (Raft 5.2)
committed-is-durable     an entry that the quorum's leader counts as committed is on most voters' disks (Raft 5.3)
counted-is-durable       an entry that a voter counts as durable is on its own disk
fenced-not-in-isr        a fenced broker leads no partition and is in no ISR (KIP-841)
session-timeout-enforced the controller fences a broker whose session ended long ago (KIP-631)
elr-kept                 a replica that leaves a too small ISR stays eligible unless its state may be lost (KIP-966)
elr-entry-valid          an ELR member was in the ISR or ELR before; the ELR is empty while the ISR is large enough
unclean-restart          a broker that stopped uncleanly returns neither in sync nor eligible (KIP-966)
isr-change-asked         the leader proposed each new ISR member on top of the state that is changed (KIP-497)
isr-incarnation          a new ISR member still has the broker epoch that the leader saw (KIP-903)
clean-election           a leader comes from the ISR or the ELR unless unclean election is allowed
epochs-in-log            the leader epochs of a log lie within it, in order (KIP-101)
log-watermark            a log's high watermark is its replica's, limited to the log
watermark-known          a replica that does not lead believes no high watermark that no leader had
truncation-keeps         no in-sync replica truncates its log below a committed offset (KIP-101)
producer-sequence        a producer's sequence numbers in a partition follow each other without gap or repetition
producer-epoch           a producer's epoch in a partition never decreases (KIP-98, KIP-890)
one-owner                one member of a group owns a partition in a generation
generation-monotone      a group's generation never decreases
offset-kept              a group commits no offset below the one committed when its generation began
transaction-state        a transactional id follows KIP-98's state transitions; its epoch never decreases
transaction-epoch        at level 2 the end of a transaction takes exactly the next epoch (KIP-890)
transaction-outcome      a marker has the outcome that the coordinator decided, and precedes the next transaction
hanging-disk-given-up    a broker gives up a log directory whose disk answers no sync in time (ADR 0043)
recovery-point-durable   what a broker counts as safe from a loss of power is durable on its disk (``durable_records``)
cordon-kept              no new replica starts in a cordoned log directory while another one works (KIP-1066)
wait-ends                a produce is answered as soon as it has nothing to wait for
answered-once            a request is answered once, whatever completes it (``coverage`` judges it on the wire)
compaction-keeps         the last value of a key survives cleaning
retention-keeps          deletion by size leaves at least ``retention.bytes``, and stays below the high watermark
======================== =============================================================================================
"""
