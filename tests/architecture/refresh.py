"""Writes what is derived from the source: the tables of the architecture page, the public names.

``make architecture`` runs it after a file or a name was added, moved or taken away.
"""

from __future__ import annotations

from architecture import names, page

if __name__ == "__main__":
    page.PAGE.write_text(page.refreshed(page.PAGE.read_text("utf-8")), "utf-8")
    names.write()
