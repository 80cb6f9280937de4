"""How much of what is owed to queues is lent to others.

Place in the flow: quotas and what is held ─**lending**─▶ lists of teams. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping


def lending(quotas: Mapping[str, int | None], held: Mapping[str, int]) -> dict[str, int]:
    """What leaves of the tree hold less than they are owed is lent as far as others borrow, in proportion."""
    borrowed = sum(max(held[name] - quota, 0) for name, quota in quotas.items() if quota is not None)
    unused = {name: max((quota or 0) - held[name], 0) for name, quota in quotas.items()}
    free = sum(unused.values())
    return {name: min(milli, borrowed * milli // free) for name, milli in unused.items() if milli}
