"""How a job stops, ends and leaves. Pure."""
