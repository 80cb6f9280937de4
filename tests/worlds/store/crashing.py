"""A process that appends batches of growing size until it is killed, and says of each that it is kept."""

from __future__ import annotations

import sys

from gpuyard.worlds.standalone.store import sqlite
from gpuyard.worlds.standalone.store.opening import open_store
from tests.worlds.store.places import a_snapshot, an_entry

LARGEST_BATCH = 7
SNAPSHOT_EVERY = 5


def batch_size(first: int) -> int:
    return 1 + first % LARGEST_BATCH


def main(address: str, kind: str) -> None:
    if kind == "sqlite-rollback":
        sqlite.library_version = lambda: (3, 40, 1)
    store = open_store(address)
    store.open()
    number = 0
    print(f"open {store.last_seq()}", flush=True)
    while True:
        first = store.last_seq() + 1
        last = first + batch_size(first) - 1
        store.append([an_entry(seq, body=b"%d-%d" % (first, last)) for seq in range(first, last + 1)])
        print(f"kept {last}", flush=True)
        number += 1
        if number % SNAPSHOT_EVERY == 0:
            store.save_snapshot(a_snapshot(last))
            print(f"snapshot {last}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
