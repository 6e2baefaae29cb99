"""What `make docs` adds to MkDocs: pages that stand outside docs/, and links that lead to them.

On the host of the repository, links are paths between files. So they are here, and each page has one text for both:
a link to a page of the site is changed to where that page is, and a file that a page links to goes along.
"""

import os.path
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "first-steps.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "explanation/security.md",
    "charts/diloco-operator/README.md": "reference/chart.md",
}
"""Pages outside docs/, by their path, and where they are on the site; beside them, the README of each example."""
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and all files that pages link to."""
    examples = {str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("examples/*/README.md")}
    for source, place in {**OUTSIDE, **{name: name for name in examples}}.items():
        files.append(File.generated(config, place, abs_src_path=str(REPOSITORY / source)))
    for page in files.documentation_pages():
        for _, target, _, _ in _LINK.findall(_FENCE.sub("", page.content_string)):
            path = _linked(page, target)
            place = _place(path) if path else ""
            if place and not files.get_file_from_path(place) and (REPOSITORY / path).is_file():
                files.append(File.generated(config, place, abs_src_path=str(REPOSITORY / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of one page to those of the site. What leads nowhere stays, and MkDocs says so."""
    del config

    def changed(link: re.Match[str]) -> str:
        path = _linked(page.file, link[2])
        place = _place(path) if path else ""
        if not place or not files.get_file_from_path(place):
            return link[0]
        target = os.path.relpath(place, PurePosixPath(page.file.src_uri).parent)
        return f"{link[1]}{target}{link[3] or ''}{link[4]}"

    return _LINK.sub(changed, markdown)


def _linked(page: File, target: str) -> str:
    """The file of the repository that a link leads to; empty for an address."""
    if "://" in target or page.abs_src_path is None:
        return ""
    path = os.path.relpath(Path(page.abs_src_path).parent / target, REPOSITORY)
    readme = f"{path}/README.md"
    return readme if (REPOSITORY / readme).is_file() else path


def _place(path: str) -> str:
    """Where a file of the repository is on the site."""
    return OUTSIDE.get(path, path.removeprefix("docs/"))
