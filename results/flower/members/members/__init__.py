"""FashionMNIST in a Flower federation of five members, one of which may misbehave."""
