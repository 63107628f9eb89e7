# Made from names/*.yaml by `make generated`.
"""Answers of the attribution service. The service itself is `undaunted serve`."""

from __future__ import annotations

from nvidia_resiliency_ext.services.attrsvc import AttrSvcResult as AttrSvcResult
from nvidia_resiliency_ext.services.attrsvc import parse_attrsvc_response as parse_attrsvc_response
