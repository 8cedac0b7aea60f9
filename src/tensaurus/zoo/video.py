"""Networks over video: ResNet3D-18 and R(2+1)D-18."""
