"""Triton kernels compiled for GPUs that this machine need not have.

A candidate's host code runs in a confined worker on tensors that have no memory, before a driver
that launches nothing: every launch, and every configuration of an autotuner, is compiled for the
target as a real launch would compile it, and read back from the machine code. So a kernel that
does not compile, spills, exceeds shared memory or misses the tensor cores shows without a GPU.

What it cannot show: whether the kernel is right (the interpreter judges that) or fast.
"""
