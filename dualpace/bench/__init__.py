"""The load generator: it asks an OpenAI-compatible server as its users would, and says what they would have felt.

A run is a process of its own (`worker`), so that nothing else holds up the loop that stamps arriving tokens.
"""
