"""A server that speaks the training API of the `tinker` SDK: the loop is the client's, the model is here."""
