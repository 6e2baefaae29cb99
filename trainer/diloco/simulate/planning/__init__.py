"""``diloco plan``: verdict, forecast and remedies of a job, by short simulations of it."""
