"""Networks with an image as output: CSRNet, FSRCNN, GCN."""
