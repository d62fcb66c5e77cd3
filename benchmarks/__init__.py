"""Benchmarks of the serving library beside its peers; ``python -m benchmarks`` runs all and writes docs/benchmarks.md."""
