"""Workbooks of Excel for tests, written by hand: one sheet of text, numbers and dates."""

from __future__ import annotations

import datetime as dt
import zipfile
from collections.abc import Sequence
from pathlib import Path

_SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def write_workbook(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """Write rows into the first sheet; a date is a number of days with a format of dates."""
    body = "".join(f"<row>{''.join(f'<c{_cell(value)}</c>' for value in row)}</row>" for row in rows)
    types = "".join(
        f'<Override PartName="/xl/{part}.xml" ContentType="{_KIND}.{kind}+xml"/>'
        for part, kind in (("workbook", "sheet.main"), ("worksheets/s", "worksheet"), ("styles", "styles"))
    )
    relation = '<Relationship Id="r{}" Type="' + _RELATIONS + '/{}" Target="{}"/>'
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>{types}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f"{relation.format(1, 'officeDocument', 'xl/workbook.xml')}</Relationships>",
        "xl/workbook.xml": f'<workbook xmlns="{_SHEETS}" xmlns:r="{_RELATIONS}"><sheets>'
        '<sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f"{relation.format(1, 'worksheet', 'worksheets/s.xml')}{relation.format(2, 'styles', 'styles.xml')}"
        "</Relationships>",
        "xl/styles.xml": f'<styleSheet xmlns="{_SHEETS}"><cellXfs count="2"><xf numFmtId="0"/>'
        '<xf numFmtId="14"/></cellXfs></styleSheet>',
        "xl/worksheets/s.xml": f'<worksheet xmlns="{_SHEETS}"><sheetData>{body}</sheetData></worksheet>',
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def _cell(value: object) -> str:
    if value is None:
        return ">"
    if isinstance(value, dt.date):
        return f' s="1"><v>{(value - dt.date(1899, 12, 30)).days}</v>'
    if isinstance(value, int | float):
        return f"><v>{value!r}</v>"
    return f' t="inlineStr"><is><t>{value}</t></is>'
