"""Makes the inputs on which models are compared and timed."""
