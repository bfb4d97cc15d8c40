"""The parts of an Office file, and how they refer to one another.

Files of many programs refer to what is not there: to `NULL`, to a place in the part itself
(`#top`), to a part that was taken out. Such a reference is none here, and the file is read.
"""

import posixpath
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from lxml import etree

from ngtcli.documents.content import Source
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.markup import parse_xml

_OPEN = "http://schemas.openxmlformats.org/"
RELATION = f"{{{_OPEN}officeDocument/2006/relationships}}"
_ALTERNATIVES = f"{{{_OPEN}markup-compatibility/2006}}AlternateContent"
BROKEN = (KeyError, BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


class Package:
    """The parts of an Office file by their names, which differ in more than case."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        # Some programs write folders as on Windows, or from the root on.
        names = archive.namelist()
        self._names = {name.lower().replace("\\", "/").lstrip("/"): name for name in names}
        self._parts: dict[str, Part] = {}

    @classmethod
    def open(cls, source: Source) -> "Package":
        """The package in a file's bytes. Raises Unreadable for one that unpacks to too much."""
        return cls(open_archive(source))

    def part(self, name: str) -> "Part | None":
        """The part of that name; None where there is none."""
        stored = self._names.get(name.lower())
        if stored is None or stored.endswith("/"):
            return None
        return self._parts.setdefault(stored, Part(self, name, stored))

    def main(self, usual: str) -> "Part":
        """The part that the others belong to. Raises KeyError."""
        named = Part(self, "").related("officeDocument")
        part = named[0] if named else self.part(usual)
        if part is None:
            raise KeyError(f"There is no item named {usual!r} in the archive")
        return part

    def read(self, name: str) -> bytes:
        """The bytes of a part. Raises what zipfile raises."""
        return self._archive.read(name)

    def stream(self, name: str) -> Any:
        """A part as a file to be read from. Raises what zipfile raises."""
        return self._archive.open(name)


@dataclass(frozen=True)
class Part:
    """A part of a package, and how the archive calls it."""

    package: Package
    name: str
    stored: str = ""

    @property
    def blob(self) -> bytes:
        """Its bytes. Raises what zipfile raises."""
        return self.package.read(self.stored)

    def tree(self, *seen: str) -> Any:
        """Its root element; of the forms in which a thing is stored the first with a `seen` tag.

        Raises etree.XMLSyntaxError.
        """
        root = parse_xml(self.blob)
        for node in list(root.iter(_ALTERNATIVES)):
            with_text = (form for form in node if next(form.iter(*seen), None) is not None)
            form = next(with_text, None)
            node[:] = [] if form is None else [form]
        return root

    @cached_property
    def _relations(self) -> dict[str, tuple[str, str]]:
        """The kind and the target of each relation by its id."""
        folder, name = posixpath.split(self.name)
        stored = self.package.part(posixpath.join(folder, "_rels", f"{name}.rels"))
        try:
            elements = list(parse_xml(stored.blob)) if stored else []
        except (*BROKEN, etree.LxmlError):
            return {}
        return {
            e.get("Id", ""): (e.get("Type", "").rpartition("/")[2], e.get("Target", ""))
            for e in elements
            if isinstance(e.tag, str) and e.get("TargetMode") != "External"
        }

    def target(self, identifier: str | None) -> "Part | None":
        """The part that a relation of this id leads to; None where it leads to none."""
        _, target = self._relations.get(identifier or "", ("", ""))
        path = unquote(target.partition("#")[0])
        if not path:
            return None
        joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(self.name), path))
        return self.package.part(joined.lstrip("/"))

    def related(self, kind: str) -> "list[Part]":
        """The parts of a kind that this one refers to, each once."""
        found = (self.target(i) for i, (named, _) in self._relations.items() if named == kind)
        return list({part.name: part for part in found if part is not None}.values())
