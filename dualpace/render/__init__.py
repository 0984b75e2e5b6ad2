"""Plan -> named source texts; touches no disk."""
