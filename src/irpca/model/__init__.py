"""The default model: latent factors with features in their priors, noise with gross errors, and what follows."""
