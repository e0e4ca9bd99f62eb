"""A loopback server that replaces data.sec.gov: submissions and company facts in the format of EDGAR."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Filing:
    """One filing: its number, form, official date, acceptance (as the feed writes it) and facts.

    ``facts`` are (tag, unit, start or None, end, value).
    """

    accession: str
    form: str
    filed: str
    accepted: str | None
    facts: tuple[tuple[str, str, str | None, str, float], ...] = ()


@dataclass
class Firm:
    """A filer; the feed's first page holds the filings from ``older`` on, a second one the rest."""

    cik: int
    filings: list[Filing]
    older: int = 0
    has_facts: bool = True


@dataclass
class Edgar:
    """Responses of the server, and the requests that it received."""

    firms: dict[int, Firm] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    spoil: Callable[[str], tuple[int, bytes] | None] = lambda path: None
    url: str = ""

    def add(self, *firms: Firm) -> None:
        """Add firms."""
        self.firms |= {firm.cik: firm for firm in firms}

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return a status and a body."""
        spoilt = self.spoil(path)
        if spoilt is not None:
            return spoilt
        if path == "/files/company_tickers.json":
            return 200, b"{}"
        if path == "/files/company_tickers_mf.json":
            return 200, json.dumps({"fields": ["cik", "seriesId", "classId", "symbol"], "data": []}).encode()
        for firm in self.firms.values():
            pages: dict[str, Callable[[Firm], Any]] = {
                f"/submissions/CIK{firm.cik:010d}.json": submissions,
                f"/submissions/CIK{firm.cik:010d}-submissions-001.json": older_filings,
            }
            if firm.has_facts:
                pages[f"/api/xbrl/companyfacts/CIK{firm.cik:010d}.json"] = company_facts
            if path in pages:
                return 200, json.dumps(pages[path](firm)).encode()
        return 404, b"<html>not found</html>"


def filing_table(filings: list[Filing]) -> dict[str, list[Any]]:
    """Arrange filings in columns, newest first, as in the feed."""
    rows = [filing for filing in reversed(filings) if filing.accepted is not None]
    count = len(rows)
    return {
        "accessionNumber": [filing.accession for filing in rows],
        "filingDate": [filing.filed for filing in rows],
        "reportDate": [""] * count,
        "acceptanceDateTime": [filing.accepted for filing in rows],
        "act": ["34"] * count,
        "form": [filing.form for filing in rows],
        "fileNumber": ["001-00001"] * count,
        "filmNumber": ["1"] * count,
        "items": [""] * count,
        "size": [1] * count,
        "isXBRL": [1 if filing.facts else 0 for filing in rows],
        "isInlineXBRL": [0] * count,
        "primaryDocument": ["a.htm"] * count,
        "primaryDocDescription": [filing.form for filing in rows],
    }


def submissions(firm: Firm) -> dict[str, Any]:
    """Write a filer's page with its recent filings."""
    address = {
        "street1": "1 Street",
        "street2": None,
        "city": "City",
        "stateOrCountry": "CA",
        "zipCode": "1",
        "stateOrCountryDescription": "CA",
    }
    pages = [{"name": f"CIK{firm.cik:010d}-submissions-001.json", "filingCount": firm.older}]
    return {
        "cik": f"{firm.cik:010d}",
        "entityType": "operating",
        "sic": "3571",
        "sicDescription": "Computers",
        "insiderTransactionForOwnerExists": 0,
        "insiderTransactionForIssuerExists": 1,
        "name": f"Firm {firm.cik}",
        "tickers": [],
        "exchanges": [],
        "ein": "1",
        "description": "",
        "website": "",
        "investorWebsite": "",
        "category": "Large accelerated filer",
        "fiscalYearEnd": "1231",
        "stateOfIncorporation": "DE",
        "stateOfIncorporationDescription": "DE",
        "addresses": {"mailing": address, "business": address},
        "phone": "1",
        "flags": "",
        "formerNames": [],
        "filings": {"recent": filing_table(firm.filings[firm.older :]), "files": pages if firm.older else []},
    }


def older_filings(firm: Firm) -> dict[str, Any]:
    """Write the second page of a filer's filings."""
    return filing_table(firm.filings[: firm.older])


def company_facts(firm: Firm) -> dict[str, Any]:
    """Write all facts of a filer, by taxonomy, tag and unit."""
    facts: dict[str, Any] = {}
    for filing in firm.filings:
        for tag, unit, start, end, value in filing.facts:
            taxonomy, _, name = tag.rpartition(":")
            concept = facts.setdefault(taxonomy or "us-gaap", {}).setdefault(
                name, {"label": name, "description": name, "units": {}}
            )
            row = {"end": end, "val": value, "accn": filing.accession, "fy": 2019, "fp": "FY"}
            row |= {"form": filing.form, "filed": filing.filed} | ({"start": start} if start else {})
            concept["units"].setdefault(unit, []).append(row)
    return {"cik": firm.cik, "entityName": f"Firm {firm.cik}", "facts": facts}


@contextmanager
def serve() -> Iterator[Edgar]:
    """Run the server on a free port of the loopback interface."""
    edgar = Edgar()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            edgar.requested.append(self.path)
            edgar.agents.add(str(self.headers.get("User-Agent")))
            status, body = edgar.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if body[:1] in b"{[" else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by the base class)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    edgar.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield edgar
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
