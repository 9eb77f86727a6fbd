"""A live federation, whichever framework carries its messages: state, record, validation of what clients send.

`celm.flower` and `celm.nvflare` translate between this package and their framework. It imports neither of the two.
"""
