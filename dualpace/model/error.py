"""The base of this part's exceptions."""


class ModelError(Exception):
    """Model files that cannot be used; the message names the file and the remedy."""
