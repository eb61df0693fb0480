"""Confinement of edged's child processes to their model and the runtime's libraries.

Engine hosts, the tracker and one-shot children parse untrusted files with runtimes written in C++. An attacker may take
control of such a process with a malicious file. Even then, the process can use only the files that `rules.allowed`
lists (Landlock). It cannot use the network or start processes (seccomp), and cannot signal other processes. Its only
capability, if any, lets it read files of other users. Exceptions: the process of a camera may use TCP and has no
seccomp filter, and the process of an export may start programs.

`landlock` and `seccomp` make the kernel enforce the rules, and `confine` applies both. edged skips restrictions that
the kernel lacks, and reports them (`lacking`). In the mode "enforce", the process fails instead.
"""
