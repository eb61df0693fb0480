"""Confinement of edged's child processes to their model and the runtime's libraries.

Engine hosts, the tracker and one-shot children parse untrusted files with runtimes written in C++. An attacker may take
control of such a process with a malicious file. The process can still reach only the files of its job (Landlock). It
cannot use the network or start processes (seccomp), cannot signal other processes, and has no capabilities.

`rules` lists what a process may reach, `landlock` and `seccomp` enforce the list, and `confine` applies both. edged
skips restrictions that the kernel lacks, and reports them (`lacking`). In the mode "enforce", the process fails
instead.
"""
