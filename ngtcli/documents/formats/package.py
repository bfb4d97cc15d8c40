"""The parts of an Office file, and the relations between them.

Many programs write relations to targets that do not exist: to `NULL`, to a position in the part
itself (`#top`), or to a part that was removed. Such relations are ignored, and the file is read.
"""

import posixpath
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from lxml import etree

from ngtcli.documents.content import ParserInput
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.markup import parse_xml

_NAMESPACES = "http://schemas.openxmlformats.org/"
RELATION = f"{{{_NAMESPACES}officeDocument/2006/relationships}}"
_ALTERNATIVES = f"{{{_NAMESPACES}markup-compatibility/2006}}AlternateContent"
# Errors that zipfile raises for broken archives.
BROKEN = (KeyError, BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


class Package:
    """The parts of an Office file, by their names, in which case does not count."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._stored_names: dict[str, str] = {}
        for stored_name in archive.namelist():
            # Some programs write backslashes, or begin names with a slash.
            name = stored_name.lower().replace("\\", "/").lstrip("/")
            self._stored_names[name] = stored_name
        self._parts: dict[str, Part] = {}

    @classmethod
    def open(cls, source: ParserInput) -> "Package":
        """Open the package in a file. Raises Unreadable if it unpacks to too much."""
        return cls(open_archive(source))

    def part(self, name: str) -> "Part | None":
        """Look up a part by its name; None if there is none."""
        stored = self._stored_names.get(name.lower())
        if stored is None or stored.endswith("/"):
            return None
        return self._parts.setdefault(stored, Part(self, name, stored))

    def main(self, usual: str) -> "Part":
        """Look up the main part, whose name is `usual` unless a relation names it.

        Raises KeyError if there is none.
        """
        main_parts = Part(self, "").related("officeDocument")
        part = main_parts[0] if main_parts else self.part(usual)
        if part is None:
            raise KeyError(f"There is no item named {usual!r} in the archive")
        return part

    def read(self, name: str) -> bytes:
        """Read a part by its name in the archive. Raises BROKEN."""
        return self._archive.read(name)

    def stream(self, name: str) -> Any:
        """Open a part by its name in the archive. Raises BROKEN."""
        return self._archive.open(name)


@dataclass(frozen=True)
class Part:
    """A part of a package.

    Attributes:
        package: The package.
        name: Name of the part.
        stored: Its name in the archive.
    """

    package: Package
    name: str
    stored: str = ""

    @property
    def blob(self) -> bytes:
        """Its bytes. Raises BROKEN."""
        return self.package.read(self.stored)

    def tree(self, *tags: str) -> Any:
        """Parse the part; return its root element.

        Of alternative forms of a thing, the first that has an element with one of `tags` stays.

        Raises etree.XMLSyntaxError.
        """
        root = parse_xml(self.blob)
        for alternatives in list(root.iter(_ALTERNATIVES)):
            chosen = []
            for form in alternatives:
                if next(form.iter(*tags), None) is not None:
                    chosen = [form]
                    break
            alternatives[:] = chosen
        return root

    @cached_property
    def _relations(self) -> dict[str, tuple[str, str]]:
        """The kind and the target of each relation, by its id."""
        folder, name = posixpath.split(self.name)
        part = self.package.part(posixpath.join(folder, "_rels", f"{name}.rels"))
        try:
            elements = list(parse_xml(part.blob)) if part else []
        except (*BROKEN, etree.LxmlError):
            return {}
        relations = {}
        for element in elements:
            is_element = isinstance(element.tag, str)
            if not is_element or element.get("TargetMode") == "External":
                continue
            kind = element.get("Type", "").rpartition("/")[2]
            relations[element.get("Id", "")] = (kind, element.get("Target", ""))
        return relations

    def target(self, identifier: str | None) -> "Part | None":
        """Follow the relation with this id; None if it leads to no part."""
        _, target = self._relations.get(identifier or "", ("", ""))
        path = unquote(target.partition("#")[0])
        if not path:
            return None
        joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(self.name), path))
        return self.package.part(joined.lstrip("/"))

    def related(self, kind: str) -> "list[Part]":
        """List the parts to which relations of this kind lead, each once."""
        parts = {}
        for identifier, (relation_kind, _) in self._relations.items():
            if relation_kind == kind:
                part = self.target(identifier)
                if part is not None:
                    parts[part.name] = part
        return list(parts.values())
