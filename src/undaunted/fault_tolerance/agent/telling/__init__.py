"""What people and other programs are told."""
