"""The domain of sparkwright: typed settings, planning, rendering, judging.

Nothing in this package imports pyinfra or touches a host.
"""

from __future__ import annotations

__version__ = "0.1.0"
