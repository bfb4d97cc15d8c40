"""XML of foreign files: no document type, no entities, nothing from outside."""

from typing import Any

from defusedxml import DefusedXmlException, ElementTree

from ngtcli.documents.text import Unreadable


def parse_xml(data: bytes) -> Any:
    """The root element. Raises Unreadable for broken XML, and for entities that it defines."""
    try:
        return ElementTree.fromstring(data, forbid_entities=True, forbid_external=True)
    except DefusedXmlException:
        raise Unreadable(
            "it defines XML entities, which are not expanded", "Save it again."
        ) from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"broken XML ({error})"[:200], "Save or copy it again.") from None
