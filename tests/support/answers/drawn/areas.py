"""The areas of drawn sequences, with the rules of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from support.answers.drawn import rules
from support.answers.drawn.administration import ADMINISTRATION
from support.answers.drawn.classic_groups import CLASSIC_GROUPS
from support.answers.drawn.consumer_groups import CONSUMER_GROUPS
from support.answers.drawn.data_path import DATA_PATH
from support.answers.drawn.mixed_groups import MIXED_GROUPS
from support.answers.drawn.settings import SETTINGS
from support.answers.drawn.share_changes import SHARE_CHANGES
from support.answers.drawn.share_groups import SHARE_GROUPS
from support.answers.drawn.streams_groups import STREAMS_GROUPS
from support.answers.drawn.topics import TOPICS
from support.answers.drawn.transactions import TRANSACTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.answers.drawn.sequences import Area

AREAS: Final[dict[str, tuple[Area, Sequence[rules.Rule]]]] = {
    "transactions": (TRANSACTIONS, rules.TRANSACTIONS),
    "classic_groups": (CLASSIC_GROUPS, rules.CLASSIC_GROUPS),
    "consumer_groups": (CONSUMER_GROUPS, rules.CONSUMER_GROUPS),
    "mixed_groups": (MIXED_GROUPS, rules.MIXED_GROUPS),
    "topics": (TOPICS, rules.TOPICS),
    "share_groups": (SHARE_GROUPS, rules.SHARE_GROUPS),
    "share_changes": (SHARE_CHANGES, rules.SHARE_CHANGES),
    "streams_groups": (STREAMS_GROUPS, rules.STREAMS_GROUPS),
    "data_path": (DATA_PATH, rules.DATA_PATH),
    "settings": (SETTINGS, rules.SETTINGS),
    "administration": (ADMINISTRATION, rules.ADMINISTRATION),
}
