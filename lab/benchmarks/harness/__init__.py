"""What the benchmarks share: crawls, nodes, clients and judges."""
