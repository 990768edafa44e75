"""Row spaces of a drafter's cache: what a slot means, and what a verify takes back. No tensors.

Pair key k is the drafter input (embedding of token t[k+1], target hidden h[k]).

                      compact                          dense
    slot of a row     append order; keys may have gaps slot == key == RoPE position
    RoPE of key k     k + 1                            k
    newest key        stored                           rows - 1
    a feed            any keys above the newest        must start at the row count, no gap
    ahead of target   cannot be                        rewound at the next propose

Trims count from what the drafter itself drafted last, never from what was verified: drafts that
were dropped before the verify are taken back like rejected ones. The two formulas are the
published behaviour of the two heads they were made for:

    compact  drafted = max(last_drafted, 1)
             trim = min(drafted, max(0, drafted - na) + (max(0, na - 1) if refeed else 0))
    dense    trim = last_drafted - min(last_drafted, na + 1)

In the dense space the first row of a propose pairs the last committed token with the target's own
hidden: it is always right and is never trimmed. A partly accepted chain of two and more would
leave the space a key short; the next propose feeds those keys (`feed_rows`).
"""

from __future__ import annotations


class RowGap(ValueError):
    """A feed that would leave keys out of a dense row space."""


def compact_trim(*, last_drafted: int, num_accepted: int, refeed: bool = False) -> int:
    """Rows that a verify takes back in the compact space."""
    drafted = max(last_drafted, 1)
    rejected = max(0, drafted - num_accepted)
    refed = max(0, num_accepted - 1) if refeed else 0
    return min(drafted, rejected + refed)


def dense_trim(*, last_drafted: int, num_accepted: int) -> int:
    """Rows that a verify takes back in the dense space."""
    return last_drafted - min(last_drafted, num_accepted + 1)


def compact_rope(key: int) -> int:
    """RoPE position of a pair key in the compact space."""
    return key + 1


def dense_rope(key: int) -> int:
    """RoPE position of a pair key in the dense space: a uniform shift, invisible to attention."""
    return key


class CompactRows:
    """Rows in append order with the newest key beside them."""

    __slots__ = ("last_drafted", "last_pair_key", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.last_pair_key: int | None = None
        self.last_drafted = 0

    def append(self, key: int, count: int) -> int:
        """Add `count` rows with keys key .. key+count-1; return the slot of the first.

        Raises:
            RowGap: a key that is not above the newest one.
        """
        if self.last_pair_key is not None and key <= self.last_pair_key:
            raise RowGap(
                f"pair key already in the drafter's cache (key={key}, newest "
                f"{self.last_pair_key}) -- its row would be there twice -- feed from the next key"
            )
        first = self.rows
        self.rows += count
        self.last_pair_key = key + count - 1
        return first

    def after_verify(self, num_accepted: int, *, refeed: bool = False) -> int:
        """Take back what the verify rejected; return the rows taken."""
        trim = compact_trim(
            last_drafted=self.last_drafted, num_accepted=num_accepted, refeed=refeed
        )
        self.rows = max(0, self.rows - trim)
        if self.last_pair_key is not None:
            self.last_pair_key = max(0, self.last_pair_key - trim)
        return trim


class DenseRows:
    """Rows whose slot, key and RoPE position are one number."""

    __slots__ = ("last_drafted", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.last_drafted = 0

    @property
    def last_pair_key(self) -> int | None:
        """Key of the newest row."""
        return self.rows - 1 if self.rows else None

    def rewind(self, rows: int) -> None:
        """Forget what lies beyond `rows`: drafts that the target did not keep."""
        self.rows = min(self.rows, rows)

    def feed(self, key: int, count: int) -> None:
        """Append `count` true pairs from `key` on, over any drafted rows from there; a new chain.

        Raises:
            RowGap: the space ends before `key`.
        """
        if key > self.rows or key < 0:
            raise RowGap(
                f"feed leaves a gap in the drafter's rows (key={key}, limit 0..{self.rows}) -- the "
                "keys between would be read unwritten -- feed from the row count"
            )
        self.rows = key + count
        self.last_drafted = 0

    def draft_one(self) -> None:
        """Note one draft more. The first of a chain comes from the newest fed row itself."""
        if self.last_drafted:
            self.rows += 1
        self.last_drafted += 1

    def after_verify(self, num_accepted: int) -> int:
        """Take back what the verify rejected; return the rows taken."""
        trim = dense_trim(last_drafted=self.last_drafted, num_accepted=num_accepted)
        self.rows = max(0, self.rows - trim)
        self.last_drafted -= trim
        return trim
