"""One small file per contender; each is a process that speaks `benchmarks.protocol`."""
