"""Files: values in one file that holds no code, and files that are there whole or not at all."""

from discreet.storage._archive import Kinds, read_archive, write_archive
from discreet.storage._whole import replacing, write_file

__all__ = ["Kinds", "read_archive", "replacing", "write_archive", "write_file"]
