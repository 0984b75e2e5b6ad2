"""DualPace compiles a YAML deployment spec into an LLM serving appliance."""

__version__ = "0.1.0"
