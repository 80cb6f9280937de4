"""Places for the databases of the attacks."""

from tests.worlds.store.conftest import new_place

__all__ = ["new_place"]
