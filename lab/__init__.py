"""The laboratory: a simulation, mutants, chaos, others' tests, containers, benchmarks."""
