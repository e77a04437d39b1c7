"""Experiments on the protocol in virtual time: the code of real ranks, at any scale."""
