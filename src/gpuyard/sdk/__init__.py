"""The typed client of a gpuyard server: `Client` and `AsyncClient`. docs/sdk.md shows how to use it.

Place in the flow: cli, your program ─**sdk**─HTTP─▶ service. What can be asked is `wire/operations.py`, what comes back
is `wire/rest.py`; nothing here decides anything.
"""
