"""The spec language: YAML text with positions -> pydantic models -> JSON Schema."""
