"""Rings, step programs and the engines."""
