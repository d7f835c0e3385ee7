"""A build hook of the site: formulas become MathML, so that a page needs no script to show them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves: a span with \(...\) or a div with \[...\].
INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page."""
    content = BLOCK.sub(lambda match: _mathml(match[1], display="block"), content)
    return INLINE.sub(lambda match: _mathml(match[1], display="inline"), content)


def _mathml(latex: str, *, display: str) -> str:
    """One formula."""
    return convert(html.unescape(latex).strip(), display=display)
