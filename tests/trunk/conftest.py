from tests.trunk.fixtures import counting, home, shared_home, tiny_is_known

__all__ = ["counting", "home", "shared_home", "tiny_is_known"]
