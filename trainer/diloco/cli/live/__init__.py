"""Reading a job that runs, on this machine or in a cluster."""
