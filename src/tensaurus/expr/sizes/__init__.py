"""Integer sizes: polynomials over symbols, quotients, and questions about them."""
