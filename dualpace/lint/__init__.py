"""Rules over a spec and its plan, as plain functions in explicit lists, and the reports."""
