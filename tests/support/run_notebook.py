"""Executes a notebook in a kernel of this Python: ``python -m tests.support.run_notebook NOTEBOOK RESULT``.

A process of its own, since the Jupyter client leaves sockets to the garbage collector, which warns of them at some
time later. Everything that Jupyter and IPython write goes beside RESULT, and so does what the notebook writes to its
working directory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

#: Seconds for one cell. The one that starts Spark is the slowest.
CELL_TIMEOUT = 200


def main(notebook: Path, result: Path) -> None:
    """Execute ``notebook`` and write it with its outputs to ``result``; raises what a cell raises."""
    folder = result.parent
    os.environ.update(
        IPYTHONDIR=str(folder / "ipython"),
        JUPYTER_CONFIG_DIR=str(folder / "jupyter"),
        JUPYTER_RUNTIME_DIR=str(folder / "runtime"),
        MPLCONFIGDIR=str(folder / "matplotlib"),
    )
    # A kernel of our own: one called python3 that the user has installed may be another Python.
    write_kernel_spec(folder / "kernels" / "here")
    specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    manager = AsyncKernelManager(kernel_name="here", kernel_spec_manager=specs)
    cells = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(cells, km=manager, timeout=CELL_TIMEOUT).execute(cwd=str(folder))
    nbformat.write(cells, result)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
