"""A real API server without nodes, and a proxy before it that fails on demand."""
