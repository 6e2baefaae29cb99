"""Jobs whose pods wait for quota of Kueue: what its Workloads say, and what is written to them."""
