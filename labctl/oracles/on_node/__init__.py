"""What oracles run on nodes: plain Python of the node's own interpreter, sent as text, that reads and tells JSON.

Each file stands alone: nothing of the lab is installed for it, and it leaves nothing behind.
"""
