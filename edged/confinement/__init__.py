"""Confinement of edged's child processes to their model and the runtime's libraries.

Engine hosts, the tracker and one-shot children parse untrusted files with runtimes written in C++. If a file takes such
a process over, the process can reach only the files of its job (Landlock); it cannot use the network or start processes
(seccomp), cannot signal other processes, and has no capabilities. `rules` lists what a process may reach, `landlock`
and `seccomp` enforce it, `confine` applies both. edged skips restrictions that the kernel lacks, and reports them
(`lacking`). In the mode "enforce", the process fails instead.
"""
