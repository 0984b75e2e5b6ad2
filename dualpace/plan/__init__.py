"""Pure resolution of a spec to a plan, and what both sides share of it: architectures, programs, layouts."""
