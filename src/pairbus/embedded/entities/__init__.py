"""PURE. The entities of the embedded namespace: queues, topics, subscriptions, their messages and filters."""
