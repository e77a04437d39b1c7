"""Experiments on the protocol in virtual time. They run the code of real ranks, with any number of PEs."""
