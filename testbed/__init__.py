"""What tests, benchmarks and `make kind-demo` share: real clusters, a real API server, a cluster in virtual time."""
