"""Plain decoding: every draft is empty, so every step yields one token."""

from ngtcli.drafting.drafter import Draft, Drafter, Room
from ngtcli.drafting.log import TokenLog


class NoDrafts(Drafter):
    """A drafter that proposes empty trees."""

    drafts = False

    def propose(self, log: TokenLog, room: Room) -> Draft:
        return Draft()
