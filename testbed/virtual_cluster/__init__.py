"""A cluster in memory and in virtual time: objects, pods, syncers, and the operator's decisions or its controller."""
