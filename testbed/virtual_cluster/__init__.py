"""A cluster in memory and in virtual time: objects, pods, syncers; with the operator's decisions or its controller."""
