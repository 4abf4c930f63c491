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
 *   mig      MIG mode:         <card index> <current> <pending>                      (absent: off; written by the library too)
 *   reset    needs a reset:    <card index>                                          (a change of its mode stays pending)
 *   profiles what can be cut:  <slot> <id> <slices> <most> <processors> <memory MiB> <size> <start>,<start>... <name>
 *   cuts     what is cut:      G <card> <gi> <profile id> <start> <size>   or   C <card> <gi> <ci> <slices>   (written too)
 *   busy     processes:        <uuid>                                                (of a card or of a MIG device)
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
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define IN_USE 19
#define INSUFFICIENT_RESOURCES 23
#define MAX_CARDS 16
#define ALL_TYPES 0xC00BULL

typedef struct { int index, mig; unsigned gi, ci; } card_t;
typedef struct { char uuid[96]; long long memory; unsigned minor; int numa; char bus[32]; char name[96]; } row_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; } pci_t;
typedef struct { card_t *card; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { long offset; unsigned long long mask[MAX_CARDS]; } set_t;
typedef union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; } value_t;
typedef struct { unsigned id, scope; long long at, latency; int type, result; value_t value; } field_t;

static card_t cards[MAX_CARDS] = {
    {0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 0}, {5, 0, 0, 0}, {6, 0, 0, 0}, {7, 0, 0, 0},
    {8, 0, 0, 0}, {9, 0, 0, 0}, {10, 0, 0, 0}, {11, 0, 0, 0}, {12, 0, 0, 0}, {13, 0, 0, 0}, {14, 0, 0, 0}, {15, 0, 0, 0}};
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

static void mig_uuid(char *into, int card, unsigned gi, unsigned ci);
static int mig_by_uuid(const char *uuid, card_t **card);
static long long mig_memory(card_t *card);

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
    return mig_by_uuid(uuid, card);
}

int nvmlDeviceGetUUID(card_t *card, char *into, unsigned length) {
    row_t row;
    int code = look("nvmlDeviceGetUUID", card, &row);
    if (code == OK && card->mig) mig_uuid(row.uuid, card->index, card->gi, card->ci);
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
    if (card->mig) row.memory = mig_memory(card);
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

/* MIG. Instances are kept in `cuts`, so that they outlive a process as real ones do. */

#define MAX_CUTS 128
#define GI(card, gi) ((gi_t *)(((unsigned long)(card) << 16) | ((gi) << 8) | 1))
#define CI(card, gi, ci) ((ci_t *)(((unsigned long)(card) << 16) | ((gi) << 8) | ((ci) << 1) | 1))
#define CARD_OF(h) ((int)((unsigned long)(h) >> 16))
#define GI_OF(h) ((unsigned)(((unsigned long)(h) >> 8) & 0xFF))
#define CI_OF(h) ((unsigned)(((unsigned long)(h) >> 1) & 0x7F))

typedef struct gi gi_t;
typedef struct ci ci_t;
typedef struct { char kind; int card; unsigned gi, a, b, c; } cut_t; /* G: profile, start, size; C: ci, slices */
typedef struct { unsigned slot, id, slices, most, sm, size, starts[8], count; unsigned long long memory; char name[64]; } profile_t;
typedef struct { unsigned start, size; } placement_t;
typedef struct { unsigned id, p2p, slices, most, sm, engines[5]; unsigned long long memory; } profile_info_t;
typedef struct { unsigned version, id, p2p, slices, most, sm, engines[5]; unsigned long long memory; char name[96]; } profile_info2_t;
typedef struct { card_t *card; unsigned id, profile; placement_t at; } gi_info_t;
typedef struct { card_t *card; gi_t *owner; unsigned id, profile; placement_t at; } ci_info_t;
typedef struct { unsigned id, slices, most, sm, engines[5]; } ci_profile_t;
typedef struct { unsigned sm, engines[5], gi_slices, ci_slices; unsigned long long memory; } attributes_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;

static card_t migs[MAX_CARDS][16][8];
static const unsigned CI_SLICES[] = {1, 2, 3, 4, 7, 8, 6};

static int cuts_read(cut_t *into) {
    char line[256];
    int count = 0;
    FILE *f = script("cuts");
    if (f == NULL) return 0;
    while (count < MAX_CUTS && fgets(line, sizeof line, f) != NULL) {
        cut_t *cut = into + count;
        cut->c = 0;
        if (sscanf(line, "%c %d %u %u %u %u", &cut->kind, &cut->card, &cut->gi, &cut->a, &cut->b, &cut->c) >= 5) count++;
    }
    fclose(f);
    return count;
}

static void save(const char *name, const char *text) {
    char path[4096], fresh[4096 + 8];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML_DIR"), name);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    f = fopen(fresh, "w");
    fputs(text, f);
    fclose(f);
    rename(fresh, path);
}

static void cuts_write(const cut_t *cuts, int count) {
    char text[MAX_CUTS * 64] = "";
    int at;
    for (at = 0; at < count; at++)
        snprintf(text + strlen(text), 64, "%c %d %u %u %u %u\n", cuts[at].kind, cuts[at].card, cuts[at].gi, cuts[at].a, cuts[at].b, cuts[at].c);
    save("cuts", text);
}

static int profiles_read(profile_t *into) {
    char line[256], starts[64];
    int count = 0;
    FILE *f = script("profiles");
    if (f == NULL) return 0;
    while (count < 32 && fgets(line, sizeof line, f) != NULL) {
        profile_t *p = into + count;
        char *part;
        if (sscanf(line, "%u %u %u %u %u %llu %u %63s %63[^\n]", &p->slot, &p->id, &p->slices, &p->most, &p->sm, &p->memory,
                   &p->size, starts, p->name) != 9)
            continue;
        p->count = 0;
        for (part = strtok(starts, ","); part != NULL && p->count < 8; part = strtok(NULL, ",")) p->starts[p->count++] = (unsigned)atoi(part);
        count++;
    }
    fclose(f);
    return count;
}

static int profile_by(int by_id, unsigned number, profile_t *into) {
    profile_t all[32];
    int count = profiles_read(all), at;
    for (at = 0; at < count; at++) {
        if ((by_id ? all[at].id : all[at].slot) != number) continue;
        *into = all[at];
        return OK;
    }
    return NOT_SUPPORTED;
}

static void mig_uuid(char *into, int card, unsigned gi, unsigned ci) {
    sprintf(into, "MIG-%08x-0000-0000-0000-%06x%06x", (unsigned)card, gi, ci);
}

static int find(const cut_t *cuts, int count, char kind, int card, unsigned gi, unsigned ci) {
    int at;
    for (at = 0; at < count; at++)
        if (cuts[at].kind == kind && cuts[at].card == card && cuts[at].gi == gi && (kind == 'G' || cuts[at].a == ci)) return at;
    return -1;
}

static card_t *mig_handle(const cut_t *cut) {
    card_t *handle = &migs[cut->card][cut->gi & 15][cut->a & 7];
    handle->index = cut->card;
    handle->mig = 1;
    handle->gi = cut->gi;
    handle->ci = cut->a;
    return handle;
}

static int mig_by_uuid(const char *uuid, card_t **card) {
    cut_t cuts[MAX_CUTS];
    char name[96];
    int count = cuts_read(cuts), at;
    for (at = 0; at < count; at++) {
        if (cuts[at].kind != 'C') continue;
        mig_uuid(name, cuts[at].card, cuts[at].gi, cuts[at].a);
        if (strcmp(name, uuid) != 0) continue;
        *card = mig_handle(cuts + at);
        return failing("nvmlDeviceGetHandleByUUID", cuts[at].card);
    }
    return NOT_FOUND;
}

static int profile_of(int card, unsigned gi, profile_t *into) {
    cut_t cuts[MAX_CUTS];
    int count = cuts_read(cuts), at = find(cuts, count, 'G', card, gi, 0);
    return at < 0 ? NOT_FOUND : profile_by(1, cuts[at].a, into);
}

static long long mig_memory(card_t *card) {
    profile_t p;
    return profile_of(card->index, card->gi, &p) == OK ? (long long)p.memory : -1;
}

static int busy(const char *uuid) {
    char line[128];
    int found = 0;
    FILE *f = script("busy");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, uuid) == 0) found = 1;
    }
    fclose(f);
    return found;
}

static void mode_of(int card, unsigned *current, unsigned *pending) {
    char line[64];
    int index;
    unsigned a, b;
    FILE *f = script("mig");
    *current = *pending = 0;
    if (f == NULL) return;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%d %u %u", &index, &a, &b) == 3 && index == card) { *current = a; *pending = b; }
    fclose(f);
}

static int enabled(const char *function, card_t *card) {
    row_t row;
    unsigned current, pending;
    int code = look(function, card, &row);
    if (code != OK) return code;
    mode_of(card->index, &current, &pending);
    return current ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(card_t *card, unsigned *current, unsigned *pending) {
    row_t row;
    int code = look("nvmlDeviceGetMigMode", card, &row);
    if (code == OK) mode_of(card->index, current, pending);
    return code;
}

int nvmlDeviceSetMigMode(card_t *card, unsigned mode, int *status) {
    row_t row;
    char text[MAX_CARDS * 16] = "", line[64];
    unsigned current, pending;
    int code = look("nvmlDeviceSetMigMode", card, &row), waits = 0, at, index;
    FILE *f;
    if (code != OK) return code;
    f = script("reset");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%d", &index) == 1 && index == card->index) waits = 1;
    if (f != NULL) fclose(f);
    for (at = 0; at < MAX_CARDS; at++) {
        mode_of(at, &current, &pending);
        if (at == card->index) { pending = mode; if (!waits) current = mode; }
        if (current || pending) snprintf(text + strlen(text), 16, "%d %u %u\n", at, current, pending);
    }
    save("mig", text);
    *status = waits ? 16 : OK;
    return OK;
}

int nvmlDeviceGetGpuInstanceProfileInfo(card_t *card, unsigned slot, profile_info_t *info) {
    profile_t p;
    int code = enabled("nvmlDeviceGetGpuInstanceProfileInfo", card);
    if (code == OK) code = profile_by(0, slot, &p);
    if (code != OK) return code;
    memset(info, 0, sizeof *info);
    info->id = p.id; info->slices = p.slices; info->most = p.most; info->sm = p.sm; info->memory = p.memory;
    return OK;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(card_t *card, unsigned slot, profile_info2_t *info) {
    profile_t p;
    int code = enabled("nvmlDeviceGetGpuInstanceProfileInfoV", card);
    if (code == OK) code = profile_by(0, slot, &p);
    if (code != OK) return code;
    info->id = p.id; info->slices = p.slices; info->most = p.most; info->sm = p.sm; info->memory = p.memory;
    snprintf(info->name, sizeof info->name, "MIG %s", p.name);
    return OK;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(card_t *card, unsigned id, placement_t *into, unsigned *count) {
    profile_t p;
    unsigned at;
    int code = enabled("nvmlDeviceGetGpuInstancePossiblePlacements", card);
    if (code == OK) code = profile_by(1, id, &p);
    if (code != OK) return code;
    for (at = 0; at < p.count; at++) { into[at].start = p.starts[at]; into[at].size = p.size; }
    *count = p.count;
    return OK;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(card_t *card, unsigned id, const placement_t *where, gi_t **made) {
    profile_t p;
    cut_t cuts[MAX_CUTS];
    unsigned at, legal = 0, gi;
    int code = enabled("nvmlDeviceCreateGpuInstanceWithPlacement", card), count, each;
    if (code == OK) code = profile_by(1, id, &p);
    if (code != OK) return code;
    for (at = 0; at < p.count; at++) legal |= p.starts[at] == where->start && p.size == where->size;
    if (!legal) return INVALID_ARGUMENT;
    count = cuts_read(cuts);
    for (each = 0; each < count; each++)
        if (cuts[each].kind == 'G' && cuts[each].card == card->index && where->start < cuts[each].b + cuts[each].c &&
            cuts[each].b < where->start + where->size)
            return INSUFFICIENT_RESOURCES;
    for (gi = 1; find(cuts, count, 'G', card->index, gi, 0) >= 0; gi++) {}
    cuts[count].kind = 'G'; cuts[count].card = card->index; cuts[count].gi = gi;
    cuts[count].a = id; cuts[count].b = where->start; cuts[count].c = where->size;
    cuts_write(cuts, count + 1);
    *made = GI(card->index, gi);
    return OK;
}

int nvmlDeviceGetGpuInstances(card_t *card, unsigned id, gi_t **into, unsigned *room) {
    cut_t cuts[MAX_CUTS];
    int code = enabled("nvmlDeviceGetGpuInstances", card), count, at;
    unsigned found = 0;
    if (code != OK) return code;
    count = cuts_read(cuts);
    for (at = 0; at < count; at++) {
        if (cuts[at].kind != 'G' || cuts[at].card != card->index || cuts[at].a != id) continue;
        if (found >= *room) return INSUFFICIENT_SIZE;
        into[found++] = GI(card->index, cuts[at].gi);
    }
    *room = found;
    return OK;
}

int nvmlDeviceGetGpuInstanceById(card_t *card, unsigned id, gi_t **found) {
    cut_t cuts[MAX_CUTS];
    int code = enabled("nvmlDeviceGetGpuInstanceById", card);
    if (code != OK) return code;
    if (find(cuts, cuts_read(cuts), 'G', card->index, id, 0) < 0) return NOT_FOUND;
    *found = GI(card->index, id);
    return OK;
}

int nvmlGpuInstanceGetInfo(gi_t *gi, gi_info_t *info) {
    cut_t cuts[MAX_CUTS];
    int at = find(cuts, cuts_read(cuts), 'G', CARD_OF(gi), GI_OF(gi), 0), code = failing("nvmlGpuInstanceGetInfo", CARD_OF(gi));
    if (code != OK) return code;
    if (at < 0) return NOT_FOUND;
    info->card = cards + CARD_OF(gi);
    info->id = cuts[at].gi; info->profile = cuts[at].a; info->at.start = cuts[at].b; info->at.size = cuts[at].c;
    return OK;
}

int nvmlGpuInstanceDestroy(gi_t *gi) {
    cut_t cuts[MAX_CUTS];
    int count = cuts_read(cuts), at, each, code = failing("nvmlGpuInstanceDestroy", CARD_OF(gi));
    if (code != OK) return code;
    at = find(cuts, count, 'G', CARD_OF(gi), GI_OF(gi), 0);
    if (at < 0) return NOT_FOUND;
    for (each = 0; each < count; each++)
        if (cuts[each].kind == 'C' && cuts[each].card == CARD_OF(gi) && cuts[each].gi == GI_OF(gi)) return IN_USE;
    cuts[at] = cuts[count - 1];
    cuts_write(cuts, count - 1);
    return OK;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(gi_t *gi, unsigned slot, unsigned engine, ci_profile_t *info) {
    profile_t p;
    int code = profile_of(CARD_OF(gi), GI_OF(gi), &p);
    (void)engine;
    if (code != OK) return code;
    if (slot >= sizeof CI_SLICES / sizeof *CI_SLICES || CI_SLICES[slot] > p.slices) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = slot; info->slices = CI_SLICES[slot]; info->most = p.slices / CI_SLICES[slot];
    return OK;
}

int nvmlGpuInstanceCreateComputeInstance(gi_t *gi, unsigned id, ci_t **made) {
    cut_t cuts[MAX_CUTS];
    profile_t p;
    unsigned taken = 0, ci;
    int count = cuts_read(cuts), at, code = failing("nvmlGpuInstanceCreateComputeInstance", CARD_OF(gi));
    if (code == OK) code = profile_of(CARD_OF(gi), GI_OF(gi), &p);
    if (code != OK) return code;
    for (at = 0; at < count; at++)
        if (cuts[at].kind == 'C' && cuts[at].card == CARD_OF(gi) && cuts[at].gi == GI_OF(gi)) taken += cuts[at].b;
    if (taken + CI_SLICES[id] > p.slices) return INSUFFICIENT_RESOURCES;
    for (ci = 0; find(cuts, count, 'C', CARD_OF(gi), GI_OF(gi), ci) >= 0; ci++) {}
    cuts[count].kind = 'C'; cuts[count].card = CARD_OF(gi); cuts[count].gi = GI_OF(gi);
    cuts[count].a = ci; cuts[count].b = CI_SLICES[id]; cuts[count].c = 0;
    cuts_write(cuts, count + 1);
    *made = CI(CARD_OF(gi), GI_OF(gi), ci);
    return OK;
}

int nvmlGpuInstanceGetComputeInstances(gi_t *gi, unsigned id, ci_t **into, unsigned *room) {
    cut_t cuts[MAX_CUTS];
    int count = cuts_read(cuts), at;
    unsigned found = 0;
    for (at = 0; at < count; at++) {
        if (cuts[at].kind != 'C' || cuts[at].card != CARD_OF(gi) || cuts[at].gi != GI_OF(gi) || cuts[at].b != CI_SLICES[id]) continue;
        if (found >= *room) return INSUFFICIENT_SIZE;
        into[found++] = CI(cuts[at].card, cuts[at].gi, cuts[at].a);
    }
    *room = found;
    return OK;
}

int nvmlComputeInstanceGetInfo_v2(ci_t *ci, ci_info_t *info) {
    memset(info, 0, sizeof *info);
    info->card = cards + CARD_OF(ci);
    info->owner = GI(CARD_OF(ci), GI_OF(ci));
    info->id = CI_OF(ci);
    return OK;
}

int nvmlComputeInstanceDestroy(ci_t *ci) {
    cut_t cuts[MAX_CUTS];
    char uuid[96];
    int count = cuts_read(cuts), at, code = failing("nvmlComputeInstanceDestroy", CARD_OF(ci));
    if (code != OK) return code;
    at = find(cuts, count, 'C', CARD_OF(ci), GI_OF(ci), CI_OF(ci));
    if (at < 0) return NOT_FOUND;
    mig_uuid(uuid, cuts[at].card, cuts[at].gi, cuts[at].a);
    if (busy(uuid)) return IN_USE;
    cuts[at] = cuts[count - 1];
    cuts_write(cuts, count - 1);
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(card_t *card, unsigned *count) {
    int code = enabled("nvmlDeviceGetMaxMigDeviceCount", card);
    if (code == OK) *count = 7;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(card_t *card, unsigned index, card_t **found) {
    cut_t cuts[MAX_CUTS];
    int code = enabled("nvmlDeviceGetMigDeviceHandleByIndex", card), count, at;
    if (code != OK) return code;
    count = cuts_read(cuts);
    for (at = 0; at < count; at++) {
        if (cuts[at].kind != 'C' || cuts[at].card != card->index || index-- != 0) continue;
        *found = mig_handle(cuts + at);
        return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(card_t *card, unsigned *is) {
    *is = card->mig ? 1 : 0;
    return OK;
}

int nvmlDeviceGetGpuInstanceId(card_t *card, unsigned *id) {
    *id = card->gi;
    return card->mig ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(card_t *card, unsigned *id) {
    *id = card->ci;
    return card->mig ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(card_t *card, card_t **parent) {
    *parent = cards + card->index;
    return card->mig ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetAttributes_v2(card_t *card, attributes_t *into) {
    profile_t p;
    cut_t cuts[MAX_CUTS];
    int at = find(cuts, cuts_read(cuts), 'C', card->index, card->gi, card->ci);
    if (!card->mig || at < 0 || profile_of(card->index, card->gi, &p) != OK) return NOT_SUPPORTED;
    memset(into, 0, sizeof *into);
    into->sm = p.sm; into->gi_slices = p.slices; into->ci_slices = cuts[at].b; into->memory = p.memory;
    return OK;
}

static int processes(const char *function, card_t *card, unsigned *count, process_t *into) {
    row_t row;
    int code = look(function, card, &row);
    unsigned room = *count;
    if (code != OK) return code;
    if (card->mig) mig_uuid(row.uuid, card->index, card->gi, card->ci);
    *count = busy(row.uuid) ? 1 : 0;
    if (*count == 0) return OK;
    if (into == NULL || room < 1) return INSUFFICIENT_SIZE;
    memset(into, 0, sizeof *into);
    into->pid = 4242;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *into) {
    return processes("nvmlDeviceGetComputeRunningProcesses", card, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(card_t *card, unsigned *count, process_t *into) {
    *count = 0;
    (void)card; (void)into;
    return OK;
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
