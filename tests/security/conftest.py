"""A running manager for attacks: the one of the service's tests."""

from tests.service.conftest import fresh_yard, yard

__all__ = ["fresh_yard", "yard"]
