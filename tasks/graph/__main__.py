"""Brings dvc.yaml and the other files of the graph up to date; see `tasks.graph.files`."""

import sys

from tasks.graph.files import main

sys.exit(main())
