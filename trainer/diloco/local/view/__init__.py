"""Shows a run while it goes on."""
