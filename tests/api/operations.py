"""Every operation of the OpenAPI document, by its path and method."""

from __future__ import annotations

from api.openapi import document

OPERATIONS = {
    (path, method): operation
    for path, operations in document()["paths"].items()
    for method, operation in operations.items()
    if method != "parameters"
}
