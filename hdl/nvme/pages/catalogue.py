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

_LOGS = {
    LogPage.ERROR: PageKind.ERROR,
    LogPage.SMART: PageKind.SMART,
    LogPage.FIRMWARE_SLOT: PageKind.FIRMWARE_SLOT,
    LogPage.CHANGED_NAMESPACES: PageKind.CHANGED_NAMESPACES,
}

_BACKGROUND_LOGS = {
    LogPage.ARRAY_STATES: PageKind.ARRAY_STATES,
    LogPage.DEFECTS: PageKind.DEFECTS,
    LogPage.LOST_BLOCKS: PageKind.LOST_BLOCKS,
}


def logs(config: Config) -> dict[LogPage, PageKind]:
    """The log pages that there are."""
    return _LOGS | (_BACKGROUND_LOGS if config.background else {})


LISTS = {
    ListPage.ARRAYS: PageKind.ARRAYS,
    ListPage.VOLUMES: PageKind.VOLUMES,
    ListPage.DRIVES: PageKind.DRIVES,
}


def log_dwords(config: Config) -> dict[LogPage, int]:
    """Size of each log page in 32-bit words (NVMe 1.4 section 5.14.1)."""
    sizes = {
        LogPage.ERROR: ENTRY_WORDS * config.error_log_entries,
        LogPage.SMART: SMART_DWORDS,
        LogPage.FIRMWARE_SLOT: FIRMWARE_SLOT_DWORDS,
        LogPage.CHANGED_NAMESPACES: DWORDS_PER_BLOCK,
        LogPage.ARRAY_STATES: min(config.arrays * REPORT_WORDS, DWORDS_PER_BLOCK),
        LogPage.DEFECTS: FINDINGS * REPORT_WORDS,
        LogPage.LOST_BLOCKS: FINDINGS * REPORT_WORDS,
    }
    return {page: sizes[page] for page in logs(config)}
