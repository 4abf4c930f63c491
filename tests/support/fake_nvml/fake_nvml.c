/*
 * A libnvidia-ml.so.1 that reads its answers from files in $FAKE_NVML_DIR, looked at again on every call:
 *
 *   devices  one card a line:  <uuid> <memory MiB> <minor> <numa or -> <pci bus id> <name with spaces>
 *   fail     scripted errors:  <function or *> <card index or *> <nvmlReturn_t>      (function without version suffix)
 *   fields   field values:     <card index> <field id> <value>                       (anything absent: not supported)
 *   remap    row remapping:    <card index> <corrected> <uncorrected> <pending> <failure>
 *   ecc      volatile errors:  <card index> <uncorrected>                            (absent: not supported)
 *   retired  page retirement:  <card index> <pages> <pending>                        (absent: not supported)
 *   sram     SRAM threshold:   <card index> <exceeded>                               (absent: no permission)
 *   repair   unrepairable:     <card index> <flag>                                   (absent: not supported)
 *   topology nearest ancestor: <card index> <card index> <nvmlGpuTopologyLevel_t>           (absent: not supported)
 *   links    active NVLinks:   <card index> <link> <remote bus id> <remote type>             (types: 0 GPU, 2 switch)
 *   types    event types:      <card index> <mask>                                   (absent: XID, both ECC, unavailable, action)
 *   events   appended lines:   <card index> <type> <data> [<gpu instance> <compute instance>]   or   error <nvmlReturn_t>
 *
 * Lines of `events` that stand there when an event set is created are older than it and are not delivered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define OK 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10
#define MAX_CARDS 16
#define ALL_TYPES 0xC00BULL

typedef struct { int index; } card_t;
typedef struct { char uuid[96]; long long memory; unsigned minor; int numa; char bus[32]; char name[96]; } row_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; } pci_t;
typedef struct { card_t *card; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { long offset; unsigned long long mask[MAX_CARDS]; } set_t;
typedef union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; } value_t;
typedef struct { unsigned id, scope; long long at, latency; int type, result; value_t value; } field_t;

static card_t cards[MAX_CARDS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
static int opened = 0;

static FILE *script(const char *name) {
    char path[4096];
    const char *dir = getenv("FAKE_NVML_DIR");
    if (dir == NULL) return NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return fopen(path, "r");
}

static int failing(const char *function, int index) {
    char line[256], which[128], whom[16];
    int code, found = OK;
    FILE *f = script("fail");
    if (f == NULL) return OK;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%127s %15s %d", which, whom, &code) != 3) continue;
        if (strcmp(which, "*") != 0 && strcmp(which, function) != 0) continue;
        if (strcmp(whom, "*") != 0 && atoi(whom) != index) continue;
        found = code;
        break;
    }
    fclose(f);
    return found;
}

static int rows(row_t *into) {
    char line[512], numa[16];
    int count = 0;
    FILE *f = script("devices");
    if (f == NULL) return 0;
    while (count < MAX_CARDS && fgets(line, sizeof line, f) != NULL) {
        row_t *row = into + count;
        if (sscanf(line, "%95s %lld %u %15s %31s %95[^\n]", row->uuid, &row->memory, &row->minor, numa, row->bus, row->name) != 6)
            continue;
        row->numa = strcmp(numa, "-") == 0 ? -1 : atoi(numa);
        count++;
    }
    fclose(f);
    return count;
}

static int look(const char *function, card_t *card, row_t *row) {
    row_t all[MAX_CARDS];
    int code;
    if (!opened) return UNINITIALIZED;
    if (card == NULL || card->index < 0 || card->index >= rows(all)) return INVALID_ARGUMENT;
    code = failing(function, card->index);
    if (code != OK) return code;
    *row = all[card->index];
    return OK;
}

static int copy(char *into, unsigned length, const char *text) {
    if (strlen(text) + 1 > length) return 7;
    strcpy(into, text);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    int code = failing("nvmlInit", -1);
    (void)flags;
    if (code == OK) opened++;
    return code;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    opened--;
    return OK;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "scripted error";
}

int nvmlSystemGetDriverVersion(char *into, unsigned length) {
    int code = failing("nvmlSystemGetDriverVersion", -1);
    return code != OK ? code : copy(into, length, "999.0 (fake)");
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    row_t all[MAX_CARDS];
    int code = failing("nvmlDeviceGetCount", -1);
    if (!opened) return UNINITIALIZED;
    if (code == OK) *count = (unsigned)rows(all);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
    row_t row;
    int code;
    if (index >= MAX_CARDS) return INVALID_ARGUMENT;
    code = look("nvmlDeviceGetHandleByIndex", cards + index, &row);
    if (code == OK) *card = cards + index;
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **card) {
    row_t all[MAX_CARDS];
    int count = rows(all), at, code;
    if (!opened) return UNINITIALIZED;
    for (at = 0; at < count; at++) {
        if (strcmp(all[at].uuid, uuid) != 0) continue;
        code = failing("nvmlDeviceGetHandleByUUID", at);
        if (code == OK) *card = cards + at;
        return code;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(card_t *card, char *into, unsigned length) {
    row_t row;
    int code = look("nvmlDeviceGetUUID", card, &row);
    return code != OK ? code : copy(into, length, row.uuid);
}

int nvmlDeviceGetName(card_t *card, char *into, unsigned length) {
    row_t row;
    int code = look("nvmlDeviceGetName", card, &row);
    return code != OK ? code : copy(into, length, row.name);
}

int nvmlDeviceGetMinorNumber(card_t *card, unsigned *minor) {
    row_t row;
    int code = look("nvmlDeviceGetMinorNumber", card, &row);
    if (code == OK) *minor = row.minor;
    return code;
}

int nvmlDeviceGetMemoryInfo(card_t *card, memory_t *memory) {
    row_t row;
    int code = look("nvmlDeviceGetMemoryInfo", card, &row);
    if (code != OK) return code;
    if (row.memory < 0) return NOT_SUPPORTED;
    memory->total = memory->free = (unsigned long long)row.memory << 20;
    memory->used = 0;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(card_t *card, pci_t *pci) {
    row_t row;
    int code = look("nvmlDeviceGetPciInfo", card, &row);
    if (code != OK) return code;
    memset(pci, 0, sizeof *pci);
    strncpy(pci->id, row.bus, sizeof pci->id - 1);
    return OK;
}

int nvmlDeviceGetNumaNodeId(card_t *card, int *node) {
    row_t row;
    int code = look("nvmlDeviceGetNumaNodeId", card, &row);
    if (code != OK) return code;
    if (row.numa < 0) return NOT_SUPPORTED;
    *node = row.numa;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(card_t *card, int *major, int *minor) {
    row_t row;
    int code = look("nvmlDeviceGetCudaComputeCapability", card, &row);
    if (code == OK) { *major = 9; *minor = 0; }
    return code;
}

int nvmlDeviceGetMigMode(card_t *card, unsigned *current, unsigned *pending) {
    row_t row;
    int code = look("nvmlDeviceGetMigMode", card, &row);
    if (code == OK) *current = *pending = 0;
    return code;
}

int nvmlDeviceGetFieldValues(card_t *card, int count, field_t *fields) {
    row_t row;
    char line[256];
    int code = look("nvmlDeviceGetFieldValues", card, &row), at;
    FILE *f;
    if (code != OK) return code;
    for (at = 0; at < count; at++) fields[at].result = NOT_SUPPORTED;
    f = script("fields");
    if (f == NULL) return OK;
    while (fgets(line, sizeof line, f) != NULL) {
        int index;
        unsigned id, value;
        if (sscanf(line, "%d %u %u", &index, &id, &value) != 3 || index != card->index) continue;
        for (at = 0; at < count; at++) {
            if (fields[at].id != id) continue;
            fields[at].result = OK;
            fields[at].type = 1;
            fields[at].value.ui = value;
        }
    }
    fclose(f);
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(card_t *one, card_t *other, int *level) {
    row_t row;
    char line[256];
    int code = look("nvmlDeviceGetTopologyCommonAncestor", one, &row), a, b, found;
    FILE *f;
    if (code != OK) return code;
    code = NOT_SUPPORTED;
    f = script("topology");
    if (f == NULL) return code;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%d %d %d", &a, &b, &found) != 3) continue;
        if ((a == one->index && b == other->index) || (b == one->index && a == other->index)) {
            *level = found;
            code = OK;
        }
    }
    fclose(f);
    return code;
}

static int link_of(const char *function, card_t *card, unsigned link, char *bus, unsigned *type) {
    row_t row;
    char line[256];
    int code = look(function, card, &row), index;
    unsigned at;
    FILE *f;
    if (code != OK) return code;
    code = INVALID_ARGUMENT;
    f = script("links");
    if (f == NULL) return NOT_SUPPORTED;
    while (code != OK && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%d %u %31s %u", &index, &at, bus, type) == 4 && index == card->index && at == link) code = OK;
    fclose(f);
    return code;
}

int nvmlDeviceGetNvLinkState(card_t *card, unsigned link, unsigned *active) {
    char bus[32];
    unsigned type;
    int code = link_of("nvmlDeviceGetNvLinkState", card, link, bus, &type);
    if (code == OK) *active = 1;
    return code;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(card_t *card, unsigned link, unsigned *type) {
    char bus[32];
    return link_of("nvmlDeviceGetNvLinkRemoteDeviceType", card, link, bus, type);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(card_t *card, unsigned link, pci_t *pci) {
    unsigned type;
    memset(pci, 0, sizeof *pci);
    return link_of("nvmlDeviceGetNvLinkRemotePciInfo", card, link, pci->id, &type);
}

int nvmlDeviceGetRemappedRows(card_t *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    row_t row;
    char line[256];
    int code = look("nvmlDeviceGetRemappedRows", card, &row), index;
    FILE *f;
    if (code != OK) return code;
    code = NOT_SUPPORTED;
    f = script("remap");
    if (f == NULL) return code;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%d %u %u %u %u", &index, corrected, uncorrected, pending, failure) == 5 && index == card->index)
            code = OK;
    }
    fclose(f);
    return code;
}

static int numbers(const char *function, const char *file, card_t *card, int absent, unsigned *one, unsigned *other) {
    row_t row;
    char line[256];
    int code = look(function, card, &row), index;
    FILE *f;
    if (code != OK) return code;
    code = absent;
    f = script(file);
    if (f == NULL) return code;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%d %u %u", &index, one, other) >= 2 && index == card->index) code = OK;
    fclose(f);
    return code;
}

int nvmlDeviceGetTotalEccErrors(card_t *card, int error_type, int counter_type, unsigned long long *count) {
    unsigned found = 0, none = 0;
    int code = numbers("nvmlDeviceGetTotalEccErrors", "ecc", card, NOT_SUPPORTED, &found, &none);
    if (code == OK) *count = error_type == 1 && counter_type == 0 ? found : 0;
    return code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(card_t *card, int *pending) {
    unsigned pages = 0, found = 0;
    int code = numbers("nvmlDeviceGetRetiredPagesPendingStatus", "retired", card, NOT_SUPPORTED, &pages, &found);
    if (code == OK) *pending = (int)found;
    return code;
}

int nvmlDeviceGetRetiredPages(card_t *card, int cause, unsigned *count, unsigned long long *addresses) {
    unsigned pages = 0, pending = 0, room = *count, at;
    int code = numbers("nvmlDeviceGetRetiredPages", "retired", card, NOT_SUPPORTED, &pages, &pending);
    if (code != OK) return code;
    if (cause != 1) pages = 0;
    *count = pages;
    if (addresses == NULL || room < pages) return pages > 0 ? 7 : OK;
    for (at = 0; at < pages; at++) addresses[at] = 0x1000ULL * at;
    return OK;
}

typedef struct { unsigned version; unsigned long counts[11]; unsigned exceeded; } sram_t;

int nvmlDeviceGetSramEccErrorStatus(card_t *card, sram_t *status) {
    unsigned found = 0, none = 0;
    int code = numbers("nvmlDeviceGetSramEccErrorStatus", "sram", card, 4, &found, &none);
    if (code == OK) status->exceeded = found;
    return code;
}

typedef struct { unsigned version, unrepairable; } repair_t;

int nvmlDeviceGetUnrepairableMemoryFlag_v1(card_t *card, repair_t *status) {
    unsigned found = 0, none = 0;
    int code = numbers("nvmlDeviceGetUnrepairableMemoryFlag", "repair", card, NOT_SUPPORTED, &found, &none);
    if (code == OK) status->unrepairable = found;
    return code;
}

int nvmlDeviceGetSupportedEventTypes(card_t *card, unsigned long long *types) {
    row_t row;
    char line[256];
    int code = look("nvmlDeviceGetSupportedEventTypes", card, &row), index;
    unsigned long long mask;
    FILE *f;
    if (code != OK) return code;
    *types = ALL_TYPES;
    f = script("types");
    if (f == NULL) return OK;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%d %llu", &index, &mask) == 2 && index == card->index) *types = mask;
    fclose(f);
    return OK;
}

int nvmlEventSetCreate(set_t **set) {
    int code = failing("nvmlEventSetCreate", -1);
    FILE *f;
    if (code != OK) return code;
    *set = calloc(1, sizeof **set);
    f = script("events");
    if (f != NULL) {
        fseek(f, 0, SEEK_END);
        (*set)->offset = ftell(f);
        fclose(f);
    }
    return OK;
}

int nvmlEventSetFree(set_t *set) {
    free(set);
    return OK;
}

int nvmlDeviceRegisterEvents(card_t *card, unsigned long long types, set_t *set) {
    row_t row;
    unsigned long long supported;
    int code = look("nvmlDeviceRegisterEvents", card, &row);
    if (code != OK) return code;
    code = nvmlDeviceGetSupportedEventTypes(card, &supported);
    if (code != OK) return code;
    if ((types & ~supported) != 0) return NOT_SUPPORTED;
    set->mask[card->index] |= types;
    return OK;
}

static int next_event(set_t *set, event_t *event) {
    char line[256];
    int code = TIMEOUT, index, result;
    FILE *f = script("events");
    if (f == NULL) return TIMEOUT;
    fseek(f, set->offset, SEEK_SET);
    while (code == TIMEOUT && fgets(line, sizeof line, f) != NULL) {
        if (strchr(line, '\n') == NULL) break;
        set->offset = ftell(f);
        event->gi = event->ci = 0xFFFFFFFFu;
        if (sscanf(line, "error %d", &result) == 1) {
            code = result;
        } else if (sscanf(line, "%d %llu %llu %u %u", &index, &event->type, &event->data, &event->gi, &event->ci) >= 3) {
            if (index < 0 || index >= MAX_CARDS || (set->mask[index] & event->type) == 0) continue;
            event->card = cards + index;
            code = OK;
        }
    }
    fclose(f);
    return code;
}

int nvmlEventSetWait_v2(set_t *set, event_t *event, unsigned timeout_ms) {
    struct timespec pause = {0, 2000000};
    unsigned waited = 0;
    int code = failing("nvmlEventSetWait", -1);
    if (code != OK) return code;
    for (;;) {
        code = next_event(set, event);
        if (code != TIMEOUT || waited >= timeout_ms) return code;
        nanosleep(&pause, NULL);
        waited += 2;
    }
}
