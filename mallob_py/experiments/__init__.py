"""Questions about the protocol, answered in virtual time: the same code as on real ranks, at any scale."""
