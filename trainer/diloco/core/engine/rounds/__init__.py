"""A round: whom it asks, how long it waits, when it ends, and when the next one is due."""
