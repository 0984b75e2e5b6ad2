"""What runs in the container: HTTP frontend, entry point, health."""
