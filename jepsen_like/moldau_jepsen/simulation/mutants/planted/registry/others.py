"""The planted bugs of clients, cleaning and retention."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.later_profiles import FEW_ACKS
from moldau_jepsen.simulation.campaign.profiles import BANK, GROUPS
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import members, readers
from moldau_jepsen.simulation.mutants.planted.log import few_acks
from moldau_jepsen.simulation.mutants.pressed import HASTY_READERS, SLOW_READERS, SMALL_BATCHES

OTHERS = (
    Mutant(
        name="reads-beyond-watermark",
        area="broker",
        text="consumers read records above the high watermark",
        patches=readers.reads_beyond_watermark,
    ),
    Mutant(
        name="consumer-skips",
        area="client",
        text="the consumer sometimes skips an offset",
        patches=readers.consumer_skips,
    ),
    Mutant(
        name="consumer-repeats",
        area="client",
        text="the consumer sometimes returns a record twice",
        patches=members.consumer_repeats,
    ),
    Mutant(
        name="former-seek-answered",
        area="client",
        text="the answer to an earlier seek moves the position of a later one",
        patches=readers.answers_of_former_seeks,
        profile=HASTY_READERS,
    ),
    Mutant(
        name="partial-chunk-repeats",
        area="client",
        text="reading of a fetched chunk sometimes resumes one record too early",
        patches=members.partial_chunk_repeats,
        profile=GROUPS,
    ),
    Mutant(
        name="offset-bit-flipped",
        area="client",
        text="the consumer sometimes returns a record with a high bit of its offset flipped",
        patches=members.offset_bit_flipped,
    ),
    Mutant(
        name="empty-keys-lost",
        area="client",
        text="an empty key is returned as a missing key",
        patches=members.empty_keys_lost,
        profile=BANK,
    ),
    Mutant(
        name="seek-skips-target",
        area="client",
        text="a seek positions the consumer after the requested record",
        patches=members.seek_skips_target,
        profile=BANK,
    ),
    Mutant(
        name="newest-batch-first",
        area="client",
        text="the newest batch of a partition is sent before older ones",
        patches=members.newest_batch_first,
        profile=SMALL_BATCHES,
    ),
    Mutant(
        name="commits-fetch-position",
        area="client",
        text="a commit takes the fetch position, which is ahead of what the application polled",
        patches=members.commits_fetch_position,
        profile=SLOW_READERS,
    ),
    Mutant(
        name="one-acknowledgement-before-the-append",
        area="broker",
        text="a leader acknowledges some batches with acks=1 and drops them",
        patches=few_acks.one_acknowledgement_before_the_append,
        profile=FEW_ACKS,
    ),
    Mutant(
        name="batch-without-answer-sent-again",
        area="client",
        text="a producer with acks=0 takes some batches that were sent for lost",
        patches=few_acks.batch_without_answer_sent_again,
        profile=FEW_ACKS,
    ),
)
