"""What an agent may read of the artifacts that jobs bring along.

Place in the flow: agent ─ReadParcel─▶ manager ─▶ **artifacts** ─ParcelPiece─▶ agent. Invariant: a node reads what a job
on it brings along, and nothing else.
"""

from __future__ import annotations

from gpuyard.errors import StoreError
from gpuyard.service.port import ParcelSource
from gpuyard.wire.agents import PARCEL_PIECE_BYTES, ParcelPiece, ReadParcel
from gpuyard.worlds.standalone.records import State, jobs_on


async def piece_for(state: State, source: ParcelSource | None, node: str, asked: ReadParcel) -> ParcelPiece:
    """Return the piece that was asked for, or why the node does not get it."""
    if not any(job.work.parcel == asked.digest for job in jobs_on(state, node)):
        return ParcelPiece(asked.digest, problem="no job on this machine brings it along")
    try:
        data = await source(asked.digest) if source is not None else None
    except StoreError as error:
        return ParcelPiece(asked.digest, problem=f"the manager cannot read it: {error.what}")
    if data is None:
        return ParcelPiece(asked.digest, problem="the manager does not have it any more")
    piece = data[asked.offset : asked.offset + PARCEL_PIECE_BYTES]
    return ParcelPiece(asked.digest, asked.offset, piece, len(data))
