"""Which page answers which code of Identify, Get Log Page and the vendor command LIST."""

from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.flow.report import FINDINGS, REPORT_WORDS
from hdl.nvme.codes import ListPage, LogPage, StructureCode
from hdl.nvme.pages.log_memory import ENTRY_WORDS
from hdl.nvme.records import PageKind

SMART_DWORDS = FIRMWARE_SLOT_DWORDS = 512 // 4

STRUCTURES = {
    StructureCode.NAMESPACE: PageKind.NAMESPACE,
    StructureCode.CONTROLLER: PageKind.CONTROLLER,
    StructureCode.ACTIVE_NAMESPACES: PageKind.ACTIVE_NAMESPACES,
    StructureCode.DESCRIPTORS: PageKind.DESCRIPTORS,
    StructureCode.ALLOCATED_NAMESPACES: PageKind.ALLOCATED_NAMESPACES,
    StructureCode.ALLOCATED_NAMESPACE: PageKind.ALLOCATED_NAMESPACE,
    StructureCode.NAMESPACE_CONTROLLERS: PageKind.CONTROLLERS,
    StructureCode.CONTROLLERS: PageKind.CONTROLLERS,
}
"""Pages of Identify (`hdl.nvme.pages.identify`)."""

LISTS = {
    ListPage.ARRAYS: PageKind.ARRAYS,
    ListPage.VOLUMES: PageKind.VOLUMES,
    ListPage.DRIVES: PageKind.DRIVES,
}
"""Pages of LIST (`hdl.nvme.pages.lists`)."""


def _log_table(config: Config) -> dict[LogPage, tuple[PageKind, int]]:
    """Page and 32-bit words of each log (`hdl.nvme.pages.logs`)."""
    array_states = min(config.arrays * REPORT_WORDS, DWORDS_PER_BLOCK)
    table = {
        LogPage.ERROR: (PageKind.ERROR, ENTRY_WORDS * config.error_log_entries),
        LogPage.SMART: (PageKind.SMART, SMART_DWORDS),
        LogPage.FIRMWARE_SLOT: (PageKind.FIRMWARE_SLOT, FIRMWARE_SLOT_DWORDS),
        LogPage.CHANGED_NAMESPACES: (PageKind.CHANGED_NAMESPACES, DWORDS_PER_BLOCK),
    }
    if config.background:
        table |= {
            LogPage.ARRAY_STATES: (PageKind.ARRAY_STATES, array_states),
            LogPage.DEFECTS: (PageKind.DEFECTS, FINDINGS * REPORT_WORDS),
            LogPage.LOST_BLOCKS: (PageKind.LOST_BLOCKS, FINDINGS * REPORT_WORDS),
        }
    return table


def logs(config: Config) -> dict[LogPage, PageKind]:
    """The log pages that there are."""
    return {code: kind for code, (kind, _) in _log_table(config).items()}


def log_dwords(config: Config) -> dict[LogPage, int]:
    """Size of each log page in 32-bit words (NVMe 1.4 section 5.14.1)."""
    return {code: dwords for code, (_, dwords) in _log_table(config).items()}
