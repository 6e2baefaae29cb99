"""The engine: which learners' fragments are merged, and when. Pure; it sees no tensor."""
