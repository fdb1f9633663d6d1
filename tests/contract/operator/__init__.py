"""What the operator and its neighbours agree on."""
