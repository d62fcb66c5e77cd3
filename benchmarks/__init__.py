"""The serving library beside its peers; ``python -m benchmarks`` runs everything and writes docs/benchmarks.md."""
