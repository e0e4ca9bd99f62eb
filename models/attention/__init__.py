"""The attention core, kernels and positions, and the encoder and decoder blocks made of them."""
