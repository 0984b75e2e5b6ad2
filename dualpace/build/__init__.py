"""Toolchains, the content-addressed store, the bundle."""
