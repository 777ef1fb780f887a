"""What tests of several rooms share: real databases, other processes, and what steps did in the world."""
