"""All that measures irpca: experiments, benchmarks, endurance runs, installs. Run from the root of the repository."""
