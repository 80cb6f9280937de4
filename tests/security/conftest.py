"""A running manager for attacks, the one of the service's tests, and places for the databases of the attacks."""

from tests.service.conftest import fresh_yard, yard
from tests.worlds.store.conftest import new_place

__all__ = ["fresh_yard", "new_place", "yard"]
