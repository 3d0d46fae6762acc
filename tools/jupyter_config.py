"""JupyterLab's kernels listen on no TCP port: they speak through sockets in Jupyter's runtime folder."""

from jupyter_core.paths import jupyter_runtime_dir

LONGEST = 52  # an address has at most 103 characters on macOS, 107 on Linux, and a kernel's name takes 50 of them

settings = get_config()  # noqa: F821  # Jupyter defines it
settings.ServerApp.allow_root = True  # in a container there is nobody else
settings.KernelManager.transport = "ipc" if len(jupyter_runtime_dir()) <= LONGEST else "tcp"
