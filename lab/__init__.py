"""The laboratory: a simulation, mutants, others' tests, containers, benchmarks."""
