"""Requests that delete."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.server.endpoint import Endpoint
from machtrace.server.service import Service
from machtrace.server.tokens import token_name

_DIGITS = 16


async def delete_device(service: Service, request: Request) -> Response:
    """Delete the reports of a device, and their bytes."""
    device, writer = request.path_params["device"], service.writer
    uncertain = request.query_params.get("uncertain") == "true"
    deleted = await writer.perform(
        lambda warehouse: writer.delete_device(warehouse, device, uncertain=uncertain)
    )
    counts = {"reports": deleted.reports, "records": deleted.records}
    # The log of administration must not have what was deleted.
    name = sha256(device.encode("utf-8", "replace")).hexdigest()[:_DIGITS]
    service.log.add("delete", device=name, **counts, token=token_name(request.state.token))
    return JSONResponse(counts)


DELETING = (
    Endpoint(
        method="DELETE",
        path="/v1/devices/{device:path}",
        summary="Delete the reports of a device, and their bytes.",
        handler=delete_device,
        scopes=frozenset(),
        parameters={"uncertain": "true: those, too, that may be of another device."},
        is_loaded=True,
    ),
)
