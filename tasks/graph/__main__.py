"""Brings dvc.yaml and the other files of the graph up to date; see `tasks.graph.dvc_files`."""

import sys

from tasks.graph.dvc_files import main

sys.exit(main())
