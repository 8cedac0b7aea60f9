"""Generators of adversarial networks: DCGAN and InfoGAN."""
