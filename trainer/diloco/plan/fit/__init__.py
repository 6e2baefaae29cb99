"""Whether links carry a schedule, in closed form, and what helps if not."""
