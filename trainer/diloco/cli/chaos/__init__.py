"""`diloco chaos`, on a run and in a cluster."""
