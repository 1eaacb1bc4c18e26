"""PURE. Decides when an entity is failed over and when it is back. Start with `states`."""
