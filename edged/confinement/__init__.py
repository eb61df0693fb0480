"""Confinement of edged's child processes to their model and the runtime's libraries.

Engine hosts, the tracker and one-shot children parse files of strangers with runtimes written in C++. A file that takes
one over finds: no file but those of the job (Landlock), no network and no new process (seccomp), no signal to others,
no capability. `rules` lists what a process may reach, `landlock` and `seccomp` enforce it, `confine` applies both.
What a kernel lacks is left out and reported (`force`), unless the mode is "enforce".
"""
