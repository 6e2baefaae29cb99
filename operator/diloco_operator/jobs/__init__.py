"""From a change of a job to its writes."""
