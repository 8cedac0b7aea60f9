"""Feed-forward image classifiers without residual connections: VGG, SqueezeNet, MobileNetV2."""
