"""The benchmarks themselves: each has `measure(quick)`, which returns a report."""
