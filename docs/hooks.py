"""Called by mkdocs: `{{ pa3dfl … }}` in a page becomes what that command prints; no page may load from a network."""

import os
import re
import shlex
import subprocess
import sys
from typing import Any

from mkdocs.exceptions import PluginError

LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*src="?https?:[^>]*>|<link[^>]*rel="?(?:stylesheet|preconnect|icon)[^>]*https?:[^>]*>'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"^\{\{ pa3dfl (.*) \}\}$", lambda found: printed(found[1]), markdown, flags=re.MULTILINE)


def printed(words: str) -> str:
    command = [sys.executable, "-m", "pa3dfl.cli", *shlex.split(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "100"})
    return f"```text\n$ pa3dfl {words}\n\n{done.stdout.rstrip()}\n```"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_path} loads something from a network: {found[0]}")
    return output
