"""The tables of the training API and their migrations, in the hub's database."""
