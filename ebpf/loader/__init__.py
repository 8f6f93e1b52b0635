"""Compiled programs into the kernel and out of it again: libbpf, and the rule table on top of it.

No compiler, no kernel headers and no LLVM are needed on a node: the objects were compiled when the package was
built, and libbpf fits them to the running kernel by its type information (CO-RE).
"""
