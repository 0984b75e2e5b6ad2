"""The exceptions of resolution."""


class PlanError(Exception):
    """A spec that cannot be resolved. `path` is the spec's field, as keys and indices; `help` is the remedy."""

    def __init__(self, path: tuple[str | int, ...], message: str, help: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.path = path
        self.message = message
        self.help = help

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.path)
        return f"{where}: {self.message}" + (f"; {self.help}" if self.help else "")


class CapacityError(PlanError):
    """A deployment that does not fit the memory of its target."""
