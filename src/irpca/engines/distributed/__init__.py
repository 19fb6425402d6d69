"""M in chunks that are read when they are asked for: out of core, or on many machines."""
