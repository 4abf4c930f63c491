"""What each XID means for a card: NVIDIA's error numbers, with our judgement beside them.

Severity and scope are a proposal, not NVIDIA's word; where peers disagree, the card's own recovery action decides (mode DEFER:
it may raise or lower the severity) or may only raise it (mode RAISE). Follow-on numbers are residue of another fault and never
escalate alone. Codes that are missing here are treated as degraded.
"""

from typing import Final

from hami.nodeagent.decide.faults import RecoveryMode, Repeat, Scope, Severity, XidRule

OBS: Final = Severity.OBSERVED
DEG: Final = Severity.DEGRADED
RST: Final = Severity.UNTIL_RESET
RPL: Final = Severity.UNTIL_REPLACED
DEFER: Final = RecoveryMode.DEFER
RAISE: Final = RecoveryMode.RAISE_ONLY

_Row = tuple[int, str, Severity, str, RecoveryMode, bool, bool]

# code, name, severity, scope, recovery action mode, may recover without an operator, follow-on
_ROWS: Final[tuple[_Row, ...]] = (
    (1, "ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD", DEG, "unknown", DEFER, True, False),
    (2, "ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD", DEG, "unknown", DEFER, True, False),
    (3, "ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD", DEG, "unknown", DEFER, True, False),
    (4, "ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY", DEG, "unknown", DEFER, True, False),
    (5, "ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW", DEG, "unknown", DEFER, True, False),
    (6, "ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR", DEG, "unknown", DEFER, True, False),
    (7, "ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR", DEG, "unknown", DEFER, True, False),
    (8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", OBS, "app", RAISE, True, False),
    (9, "ROBUST_CHANNEL_GR_ERROR_INSTANCE", DEG, "unknown", DEFER, True, False),
    (10, "ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP", DEG, "unknown", DEFER, True, False),
    (11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", OBS, "app", RAISE, True, False),
    (12, "ROBUST_CHANNEL_GR_ERROR_SW_METHOD", DEG, "unknown", DEFER, True, False),
    (13, "ROBUST_CHANNEL_GR_EXCEPTION / / ROBUST_CHANNEL_GR_ERROR_SW_NOTIFY", OBS, "app", RAISE, True, False),
    (14, "ROBUST_CHANNEL_FAKE_ERROR", OBS, "app", RAISE, True, False),
    (15, "ROBUST_CHANNEL_SCANLINE_TIMEOUT", DEG, "unknown", DEFER, True, False),
    (16, "ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT", DEG, "unknown", DEFER, True, False),
    (17, "ROBUST_CHANNEL_PARAMETER_ERROR", DEG, "unknown", DEFER, True, False),
    (18, "ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR", DEG, "unknown", DEFER, True, False),
    (19, "ROBUST_CHANNEL_DISP_MISSED_NOTIFIER", DEG, "unknown", DEFER, True, False),
    (20, "ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD", DEG, "unknown", DEFER, True, False),
    (21, "ROBUST_CHANNEL_ME_ERROR_SW_METHOD", DEG, "unknown", DEFER, True, False),
    (22, "ROBUST_CHANNEL_VP_ERROR_SW_METHOD", DEG, "unknown", DEFER, True, False),
    (23, "ROBUST_CHANNEL_RC_LOGGING_ENABLED", DEG, "unknown", DEFER, True, False),
    (24, "ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT", DEG, "unknown", DEFER, True, False),
    (25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", OBS, "app", RAISE, True, False),
    (26, "ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT", DEG, "unknown", DEFER, True, False),
    (27, "ROBUST_CHANNEL_VP_ERROR", DEG, "unknown", DEFER, True, False),
    (28, "ROBUST_CHANNEL_VP2_ERROR", DEG, "unknown", DEFER, True, False),
    (29, "ROBUST_CHANNEL_BSP_ERROR", DEG, "unknown", DEFER, True, False),
    (30, "ROBUST_CHANNEL_BAD_ADDR_ACCESS", DEG, "unknown", DEFER, True, False),
    (31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", OBS, "app", RAISE, True, False),
    (32, "ROBUST_CHANNEL_PBDMA_ERROR", OBS, "app", RAISE, True, False),
    (33, "ROBUST_CHANNEL_SEC_ERROR", DEG, "unknown", DEFER, True, False),
    (34, "ROBUST_CHANNEL_MSVLD_ERROR", DEG, "unknown", DEFER, True, False),
    (35, "ROBUST_CHANNEL_MSPDEC_ERROR", DEG, "unknown", DEFER, True, False),
    (36, "ROBUST_CHANNEL_MSPPP_ERROR", DEG, "unknown", DEFER, True, False),
    (37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", OBS, "app", RAISE, True, False),
    (38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", OBS, "app", RAISE, True, False),
    (39, "ROBUST_CHANNEL_CE0_ERROR", OBS, "app", RAISE, True, False),
    (40, "ROBUST_CHANNEL_CE1_ERROR", OBS, "app", RAISE, True, False),
    (41, "ROBUST_CHANNEL_CE2_ERROR", OBS, "app", RAISE, True, False),
    (42, "ROBUST_CHANNEL_VIC_ERROR", DEG, "unknown", DEFER, True, False),
    (43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", OBS, "app", RAISE, True, False),
    (44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", OBS, "app", RAISE, True, False),
    (45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", OBS, "app", RAISE, True, True),
    (46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", RST, "gpu", DEFER, True, False),
    (47, "ROBUST_CHANNEL_NVENC0_ERROR", DEG, "unknown", DEFER, True, False),
    (48, "ROBUST_CHANNEL_GPU_ECC_DBE", RST, "gpu", DEFER, True, False),
    (49, "SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY", DEG, "unknown", DEFER, True, False),
    (50, "SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR", DEG, "unknown", DEFER, True, False),
    (51, "SILENT_RUNNING_STRESS_TEST_FAILURE", DEG, "unknown", DEFER, True, False),
    (52, "SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE", DEG, "unknown", DEFER, True, False),
    (53, "SILENT_RUNNING_TEMP_REDUCED_CLOCKING", DEG, "unknown", DEFER, True, False),
    (54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", RPL, "gpu", RAISE, False, False),
    (55, "SILENT_RUNNING_TEMPERATURE_READ_ERROR", DEG, "unknown", DEFER, True, False),
    (56, "DISPLAY_CHANNEL_EXCEPTION", DEG, "unknown", DEFER, True, False),
    (57, "FB_LINK_TRAINING_FAILURE_ERROR", DEG, "unknown", DEFER, True, False),
    (58, "FB_MEMORY_ERROR", DEG, "unknown", DEFER, True, False),
    (59, "PMU_ERROR", DEG, "unknown", DEFER, True, False),
    (60, "ROBUST_CHANNEL_SEC2_ERROR", OBS, "app", RAISE, True, False),
    (61, "PMU_BREAKPOINT", DEG, "unknown", DEFER, True, False),
    (62, "PMU_HALT_ERROR", RST, "gpu", RAISE, True, False),
    (63, "INFOROM_DRAM_RETIREMENT_EVENT", DEG, "gpu", RAISE, True, False),
    (64, "INFOROM_DRAM_RETIREMENT_FAILURE", RST, "gpu", RAISE, True, False),
    (65, "ROBUST_CHANNEL_NVENC1_ERROR", DEG, "unknown", DEFER, True, False),
    (66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", OBS, "app", RAISE, True, False),
    (67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", OBS, "app", RAISE, True, False),
    (68, "ROBUST_CHANNEL_NVDEC0_ERROR", OBS, "app", RAISE, True, False),
    (69, "ROBUST_CHANNEL_GR_CLASS_ERROR", OBS, "app", RAISE, True, False),
    (70, "ROBUST_CHANNEL_CE3_ERROR", OBS, "app", RAISE, True, False),
    (71, "ROBUST_CHANNEL_CE4_ERROR", OBS, "app", RAISE, True, False),
    (72, "ROBUST_CHANNEL_CE5_ERROR", OBS, "app", RAISE, True, False),
    (73, "ROBUST_CHANNEL_NVENC2_ERROR", DEG, "unknown", DEFER, True, False),
    (74, "NVLINK_ERROR", RST, "link", DEFER, True, False),
    (75, "ROBUST_CHANNEL_CE6_ERROR", OBS, "app", RAISE, True, False),
    (76, "ROBUST_CHANNEL_CE7_ERROR", OBS, "app", RAISE, True, False),
    (77, "ROBUST_CHANNEL_CE8_ERROR", OBS, "app", RAISE, True, False),
    (78, "VGPU_START_ERROR", DEG, "instance", RAISE, False, False),
    (79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", RST, "gpu", RAISE, True, False),
    (80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", OBS, "app", RAISE, True, False),
    (81, "ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR", DEG, "unknown", DEFER, True, False),
    (82, "ROBUST_CHANNEL_NVJPG0_ERROR", OBS, "app", RAISE, True, False),
    (83, "ROBUST_CHANNEL_NVDEC1_ERROR", OBS, "app", RAISE, True, False),
    (84, "ROBUST_CHANNEL_NVDEC2_ERROR", OBS, "app", RAISE, True, False),
    (85, "ROBUST_CHANNEL_CE9_ERROR", OBS, "app", RAISE, True, False),
    (86, "ROBUST_CHANNEL_OFA0_ERROR", OBS, "app", RAISE, True, False),
    (87, "NVTELEMETRY_DRIVER_REPORT", DEG, "unknown", DEFER, True, False),
    (88, "ROBUST_CHANNEL_NVDEC3_ERROR", OBS, "app", RAISE, True, False),
    (89, "ROBUST_CHANNEL_NVDEC4_ERROR", OBS, "app", RAISE, True, False),
    (90, "LTC_ERROR", DEG, "unknown", DEFER, True, False),
    (91, "RESERVED_XID", DEG, "unknown", DEFER, True, False),
    (92, "EXCESSIVE_SBE_INTERRUPTS", OBS, "gpu", RAISE, True, False),
    (93, "INFOROM_ERASE_LIMIT_EXCEEDED", OBS, "gpu", RAISE, True, False),
    (94, "ROBUST_CHANNEL_CONTAINED_ERROR", OBS, "instance", DEFER, True, False),
    (95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", RST, "gpu", DEFER, True, False),
    (96, "ROBUST_CHANNEL_NVDEC5_ERROR", OBS, "app", RAISE, True, False),
    (97, "ROBUST_CHANNEL_NVDEC6_ERROR", OBS, "app", RAISE, True, False),
    (98, "ROBUST_CHANNEL_NVDEC7_ERROR", OBS, "app", RAISE, True, False),
    (99, "ROBUST_CHANNEL_NVJPG1_ERROR", OBS, "app", RAISE, True, False),
    (100, "ROBUST_CHANNEL_NVJPG2_ERROR", OBS, "app", RAISE, True, False),
    (101, "ROBUST_CHANNEL_NVJPG3_ERROR", OBS, "app", RAISE, True, False),
    (102, "ROBUST_CHANNEL_NVJPG4_ERROR", OBS, "app", RAISE, True, False),
    (103, "ROBUST_CHANNEL_NVJPG5_ERROR", OBS, "app", RAISE, True, False),
    (104, "ROBUST_CHANNEL_NVJPG6_ERROR", OBS, "app", RAISE, True, False),
    (105, "ROBUST_CHANNEL_NVJPG7_ERROR", OBS, "app", RAISE, True, False),
    (106, "SMBPBI_TEST_MESSAGE", OBS, "app", RAISE, True, False),
    (107, "SMBPBI_TEST_MESSAGE_SILENT", OBS, "app", RAISE, True, False),
    (108, "NVLINK_REMOTE_TRANSLATION_ERROR", DEG, "unknown", DEFER, True, False),
    (109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", RST, "gpu", DEFER, True, False),
    (110, "SEC_FAULT_ERROR", RST, "gpu", RAISE, True, False),
    (111, "BUNDLE_ERROR_EVENT", DEG, "unknown", DEFER, True, False),
    (112, "DISP_SUPERVISOR_ERROR", DEG, "unknown", DEFER, True, False),
    (113, "DP_LT_FAILURE", DEG, "unknown", DEFER, True, False),
    (114, "HEAD_RG_UNDERFLOW", DEG, "unknown", DEFER, True, False),
    (115, "CORE_CHANNEL_REGS", DEG, "unknown", DEFER, True, False),
    (116, "WINDOW_CHANNEL_REGS", DEG, "unknown", DEFER, True, False),
    (117, "CURSOR_CHANNEL_REGS", DEG, "unknown", DEFER, True, False),
    (118, "HEAD_REGS", DEG, "unknown", DEFER, True, False),
    (119, "GSP_RPC_TIMEOUT", RST, "gpu", RAISE, True, False),
    (120, "GSP_ERROR", RST, "gpu", RAISE, True, False),
    (121, "C2C_ERROR", OBS, "link", RAISE, True, False),
    (122, "SPI_PMU_RPC_READ_FAIL", DEG, "unknown", DEFER, True, False),
    (123, "SPI_PMU_RPC_WRITE_FAIL", DEG, "unknown", DEFER, True, False),
    (124, "SPI_PMU_RPC_ERASE_FAIL", DEG, "unknown", DEFER, True, False),
    (125, "INFOROM_FS_ERROR", DEG, "unknown", DEFER, True, False),
    (126, "ROBUST_CHANNEL_CE10_ERROR", OBS, "app", RAISE, True, False),
    (127, "ROBUST_CHANNEL_CE11_ERROR", OBS, "app", RAISE, True, False),
    (128, "ROBUST_CHANNEL_CE12_ERROR", OBS, "app", RAISE, True, False),
    (129, "ROBUST_CHANNEL_CE13_ERROR", OBS, "app", RAISE, True, False),
    (130, "ROBUST_CHANNEL_CE14_ERROR", OBS, "app", RAISE, True, False),
    (131, "ROBUST_CHANNEL_CE15_ERROR", OBS, "app", RAISE, True, False),
    (132, "ROBUST_CHANNEL_CE16_ERROR", OBS, "app", RAISE, True, False),
    (133, "ROBUST_CHANNEL_CE17_ERROR", OBS, "app", RAISE, True, False),
    (134, "ROBUST_CHANNEL_CE18_ERROR", OBS, "app", RAISE, True, False),
    (135, "ROBUST_CHANNEL_CE19_ERROR", OBS, "app", RAISE, True, False),
    (136, "ALI_TRAINING_FAIL", RST, "link", DEFER, True, False),
    (137, "NVLINK_PRIV_ERR", OBS, "app", RAISE, True, False),
    (138, "ROBUST_CHANNEL_DLA_ERROR", DEG, "unknown", DEFER, True, False),
    (139, "ROBUST_CHANNEL_OFA1_ERROR", OBS, "app", RAISE, True, False),
    (140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", RST, "gpu", RAISE, True, False),
    (141, "ROBUST_CHANNEL_FAST_PATH_ERROR", OBS, "app", RAISE, True, False),
    (142, "ROBUST_CHANNEL_NVENC3_ERROR", DEG, "gpu", DEFER, True, False),
    (143, "GPU_INIT_ERROR", RST, "gpu", RAISE, True, False),
    (144, "NVLINK_SAW_ERROR", DEG, "link", DEFER, True, False),
    (145, "NVLINK_RLW_ERROR", DEG, "link", DEFER, True, False),
    (146, "NVLINK_TLW_ERROR", DEG, "link", DEFER, True, False),
    (147, "NVLINK_TREX_ERROR", DEG, "link", DEFER, True, False),
    (148, "NVLINK_NVLPW_CTRL_ERROR", DEG, "link", DEFER, True, False),
    (149, "NVLINK_NETIR_ERROR", DEG, "link", DEFER, True, False),
    (150, "NVLINK_MSE_ERROR", RST, "link", DEFER, True, False),
    (151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", RST, "node", RAISE, True, False),
    (152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", OBS, "app", RAISE, True, False),
    (153, "ROBUST_CHANNEL_DLA_TIMEOUT", OBS, "app", RAISE, True, False),
    (154, "GPU_RECOVERY_ACTION_CHANGED", OBS, "gpu", DEFER, True, True),
    (155, "NVLINK_SW_DEFINED_ERROR", RST, "link", DEFER, True, False),
    (156, "RESOURCE_RETIREMENT_EVENT", RST, "gpu", DEFER, True, False),
    (157, "RESOURCE_RETIREMENT_FAILURE", DEG, "gpu", RAISE, False, False),
    (158, "GPU_FATAL_TIMEOUT", RST, "gpu", RAISE, True, False),
    (159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", DEG, "gpu", DEFER, True, False),
    (160, "CHANNEL_RETIREMENT_EVENT", DEG, "gpu", DEFER, True, False),
    (161, "CHANNEL_RETIREMENT_FAILURE", DEG, "gpu", RAISE, False, False),
    (162, "PSHC_REENGAGED", OBS, "gpu", RAISE, True, False),
    (163, "PSHC_DISENGAGED", DEG, "gpu", RAISE, True, False),
    (164, "PSHC_LOW_LIFETIME", OBS, "gpu", RAISE, True, False),
    (165, "PSHC_ZERO_LIFETIME", DEG, "gpu", RAISE, False, False),
    (166, "NVLINK_SECURE_CRYPTO_ERR", DEG, "link", DEFER, True, False),
    (167, "PCIE_FATAL_TIMEOUT", RST, "gpu", RAISE, True, False),
    (168, "REDUCED_GPU_MEMORY_CAPACITY", DEG, "gpu", DEFER, True, False),
    (169, "SEC2_HALT_ERROR", RST, "gpu", DEFER, True, False),
    (170, "NVLINK_SECURE_OTHER", DEG, "link", DEFER, True, False),
    (171, "UNCORRECTABLE_DRAM_ERROR", OBS, "gpu", DEFER, True, True),
    (172, "UNCORRECTABLE_SRAM_ERROR", OBS, "gpu", DEFER, True, True),
    (173, "C2C_FATAL_LINK_FAILURE", RST, "node", RAISE, True, False),
    (174, "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT", OBS, "app", RAISE, True, False),
    (175, "MEMORY_SUBSYSTEM_ERROR", RST, "gpu", DEFER, True, False),
    (176, "PCIE_CORRECTABLE_ERROR_FAULT", OBS, "gpu", RAISE, True, False),
    (185, "SPARING_EVENT", OBS, "gpu", DEFER, True, False),
    (999, "NVML_UNKNOWN_XID", DEG, "unknown", DEFER, True, False),
)

_WORKLOADS: Final = frozenset({8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 80, 139}).union(
    range(68, 73), range(75, 78), range(82, 87), (88, 89), range(96, 106), range(126, 136)
)
_BURSTS: Final = frozenset({37, 38, 43, 44, 66, 67, 92, 94, 106, 107, 141, 152, 153})
_CANCELS: Final = {162: frozenset({163})}
_WORN_OUT_BY_RETURN: Final = frozenset({64, 79, 143})
HANGS_LIBRARY: Final = frozenset({119, 120})
"""After these the library may hang: then the whole node is taken to be affected until it is rebooted."""


def _repeat(code: int) -> Repeat:
    return Repeat.WORKLOADS if code in _WORKLOADS else Repeat.BURSTS if code in _BURSTS else Repeat.NEVER


XID_RULES: Final = {
    code: XidRule(
        code=code,
        name=name,
        severity=severity,
        scope=Scope(scope),
        mode=mode,
        auto_recover=auto_recover,
        follow_on=follow_on,
        repeat=_repeat(code),
        cancels=_CANCELS.get(code, frozenset()),
        worn_out_by_return=code in _WORN_OUT_BY_RETURN,
    )
    for code, name, severity, scope, mode, auto_recover, follow_on in _ROWS
}

UNLISTED: Final = XidRule(
    code=0, name="UNLISTED", severity=DEG, scope=Scope.UNKNOWN, mode=DEFER, auto_recover=True, follow_on=False
)

RECOVERY_ACTIONS: Final[dict[int, tuple[str, Severity, Scope]]] = {
    0: ("NONE", OBS, Scope.APP),
    1: ("GPU_RESET", RST, Scope.GPU),
    2: ("NODE_REBOOT", RST, Scope.NODE),
    3: ("DRAIN_P2P", DEG, Scope.LINK),
    4: ("DRAIN_AND_RESET", RST, Scope.GPU),
    5: ("RECOVER_IMEX_DOMAIN", DEG, Scope.LINK),
    6: ("BUS_RESET", RST, Scope.GPU),
    7: ("SYSTEM_REBOOT", RST, Scope.NODE),
}
"""The driver's own verdict (field 230). A value that is not listed counts as GPU_RESET: it is a fault, not missing data."""

HAMI_IGNORED: Final = frozenset({13, 31, 43, 45, 68, 109})
"""What HAMi (and NVIDIA's own plugin) ignore unless told otherwise; every other number condemns the card there."""
