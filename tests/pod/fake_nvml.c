/* A driver library without a driver. FAKE_NVML names a text file that is read again at every call:
 *
 *     count 2
 *     init 9                          (an NVML error code)
 *     0 name NVIDIA H100
 *     0 memory 85520809984 629145600 1073741824     (bytes: total, reserved, allocated)
 *     0 process 4242 1073741824       (bytes, or "unknown"; also "graphics" and "mps" instead of "process")
 *     0 ecc 3
 *     0 rows_failed 1
 *     0 hang /path                    (calls for this GPU wait until that file exists)
 *     0 crash 11                      (the process ends by that signal)
 *     0 busy 97 12                    (utilisation now in percent: GPU, memory; without it: not supported)
 *     0 rests 1                       (every second answer about its utilisation now is 0)
 *     0 sample 40                     (one of the utilisations of the last seconds)
 *     0 mig 1                         (the current mode)
 *     8 parent 0                      (a part of GPU 0, which only its UUID leads to; it has a line `8 uuid MIG-...`)
 *     0 computes 4242 97              (a process and its share; without any: none of the last seconds)
 *     0 error nvmlDeviceGetName 15    (this call returns that error code)
 *
 * Arguments that the real library refuses are refused with its error codes. FAKE_NVML_LOG gets one line per nvmlInit.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    UNKNOWN = 999, ARGUMENT_VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 16, MEMORY_V2 = 0x02000028 };

typedef struct { int index, rested; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static Device devices[MAX_GPUS];
static int initialized;

/* The nth line that starts with "<index> <key> " (or "<key> " for index -1): what follows, or 0. */
static int setting(int index, const char *key, int nth, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], prefix[128];
    int found = 0;
    if (!file) return 0;
    if (index < 0) snprintf(prefix, sizeof prefix, "%s ", key);
    else snprintf(prefix, sizeof prefix, "%d %s ", index, key);
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, prefix, strlen(prefix)) || nth-- > 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + strlen(prefix));
        found = 1;
    }
    fclose(file);
    return found;
}

static int gpu_count(void) {
    char value[64];
    return setting(-1, "count", 0, value, sizeof value) ? atoi(value) : 0;
}

/* What stands in the way of a call for this GPU: an error code, or 0. */
static int enter_index(int index, const char *function) {
    char value[512], name[128];
    int code, nth;
    if (setting(index, "hang", 0, value, sizeof value))
        while (access(value, F_OK)) usleep(5000);
    if (setting(index, "crash", 0, value, sizeof value)) raise(atoi(value));
    for (nth = 0; setting(index, "error", nth, value, sizeof value); nth++)
        if (sscanf(value, "%127s %d", name, &code) == 2 && !strcmp(name, function)) return code;
    return SUCCESS;
}

static int enter(Device *device, const char *function) {
    if (!initialized) return UNINITIALIZED;
    char value[64];
    if (device < devices || device >= devices + MAX_GPUS || device != &devices[device->index]) return INVALID_ARGUMENT;
    if (device->index >= gpu_count() && !setting(device->index, "parent", 0, value, sizeof value)) return INVALID_ARGUMENT;
    return enter_index(device->index, function);
}

int nvmlInitWithFlags(unsigned flags) {
    char value[512];
    const char *log = getenv("FAKE_NVML_LOG");
    if (flags) return INVALID_ARGUMENT;
    /* Libraries do print, and to where nobody expects it. */
    puts("a library that prints");
    fflush(stdout);
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) { fprintf(file, "%d\n", (int)getpid()); fclose(file); }
    }
    if (setting(-1, "init_hang", 0, value, sizeof value))
        while (access(value, F_OK)) usleep(5000);
    if (setting(-1, "init", 0, value, sizeof value)) return atoi(value);
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    initialized = 1;
    return SUCCESS;
}

int nvmlShutdown(void) { return initialized ? (initialized = 0, SUCCESS) : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case INVALID_ARGUMENT: return "Invalid Argument";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    if (!count) return INVALID_ARGUMENT;
    *count = gpu_count();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (!initialized) return UNINITIALIZED;
    if (!device || index >= (unsigned)gpu_count()) return INVALID_ARGUMENT;
    int code = enter_index(index, "nvmlDeviceGetHandleByIndex_v2");
    if (!code) *device = &devices[index];
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    char value[512];
    if (!initialized) return UNINITIALIZED;
    if (!device || !uuid) return INVALID_ARGUMENT;
    for (int i = 0; i < MAX_GPUS; i++)
        if (setting(i, "uuid", 0, value, sizeof value) && !strcmp(value, uuid)) return *device = &devices[i], SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *part, Device **device) {
    char value[64];
    int code = enter(part, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    if (code) return code;
    if (!device || !setting(part->index, "parent", 0, value, sizeof value)) return INVALID_ARGUMENT;
    *device = &devices[atoi(value)];
    return SUCCESS;
}

static int text(Device *device, const char *function, const char *key, char *buffer, unsigned length) {
    char value[512];
    int code = enter(device, function);
    if (code) return code;
    if (!buffer) return INVALID_ARGUMENT;
    if (!setting(device->index, key, 0, value, sizeof value)) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *buffer, unsigned length) {
    return text(device, "nvmlDeviceGetName", "name", buffer, length);
}

int nvmlDeviceGetUUID(Device *device, char *buffer, unsigned length) {
    return text(device, "nvmlDeviceGetUUID", "uuid", buffer, length);
}

static int memory(Device *device, unsigned long long *total, unsigned long long *reserved, unsigned long long *used) {
    char value[512];
    if (!setting(device->index, "memory", 0, value, sizeof value)) return NOT_SUPPORTED;
    return sscanf(value, "%llu %llu %llu", total, reserved, used) == 3 ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *info) {
    unsigned long long reserved;
    int code = enter(device, "nvmlDeviceGetMemoryInfo");
    if (code) return code;
    if (!info) return INVALID_ARGUMENT;
    code = memory(device, &info->total, &reserved, &info->used);
    if (code) return code;
    info->used += reserved;
    info->free = info->total - info->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *info) {
    int code = enter(device, "nvmlDeviceGetMemoryInfo_v2");
    if (code) return code;
    if (!info) return INVALID_ARGUMENT;
    if (info->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    code = memory(device, &info->total, &info->reserved, &info->used);
    if (code) return code;
    info->free = info->total - info->reserved - info->used;
    return SUCCESS;
}

static int processes(Device *device, const char *function, const char *key, unsigned *count, Process *found) {
    char value[512], size[64];
    unsigned room, pid, number = 0;
    int code = enter(device, function);
    if (code) return code;
    if (!count || (*count && !found)) return INVALID_ARGUMENT;
    room = *count;
    for (; setting(device->index, key, number, value, sizeof value); number++) {
        if (number >= room) continue;
        if (sscanf(value, "%u %63s", &pid, size) != 2) return UNKNOWN;
        found[number].pid = pid;
        found[number].used = strcmp(size, "unknown") ? strtoull(size, NULL, 10) : ~0ULL;
        found[number].gpu_instance = found[number].compute_instance = ~0U;
    }
    *count = number;
    return number > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(function, key)                                                      \
    int function(Device *device, unsigned *count, Process *found) {              \
        return processes(device, #function, key, count, found);                  \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, "process")
LIST(nvmlDeviceGetComputeRunningProcesses_v2, "process")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *errors) {
    char value[64];
    int code = enter(device, "nvmlDeviceGetTotalEccErrors");
    if (code) return code;
    if (type > 1 || counter > 1 || !errors) return INVALID_ARGUMENT;
    if (!setting(device->index, "ecc", 0, value, sizeof value)) return NOT_SUPPORTED;
    /* Corrected errors (0) and those of the whole life of the GPU (counter 1) are not what makes it unusable. */
    *errors = type == 1 && counter == 0 ? strtoull(value, NULL, 10) : 77;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    char value[64];
    int code = enter(device, "nvmlDeviceGetRemappedRows");
    if (code) return code;
    if (!corrected || !uncorrected || !pending || !failed) return INVALID_ARGUMENT;
    if (!setting(device->index, "rows_failed", 0, value, sizeof value)) return NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = 1;
    *failed = atoi(value);
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } Utilization;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; signed long long sll; } Value;
typedef struct { unsigned long long at; Value value; } Sample;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; } ProcessUse;

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *use) {
    char value[64];
    int code = enter(device, "nvmlDeviceGetUtilizationRates");
    if (code) return code;
    if (!use) return INVALID_ARGUMENT;
    if (!setting(device->index, "busy", 0, value, sizeof value)) return NOT_SUPPORTED;
    if (sscanf(value, "%u %u", &use->gpu, &use->memory) != 2) return UNKNOWN;
    if (setting(device->index, "rests", 0, value, sizeof value) && (device->rested = !device->rested)) use->gpu = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    char value[64];
    int code = enter(device, "nvmlDeviceGetMigMode");
    if (code) return code;
    if (!current || !pending) return INVALID_ARGUMENT;
    if (!setting(device->index, "mig", 0, value, sizeof value)) return NOT_SUPPORTED;
    *current = *pending = atoi(value);
    return SUCCESS;
}

/* Type 1: utilisation of the GPU. As the library does, the number of samples is told where there is no room for any. */
int nvmlDeviceGetSamples(Device *device, unsigned type, unsigned long long since, unsigned *kind, unsigned *count, Sample *found) {
    char value[64];
    unsigned number = 0;
    int code = enter(device, "nvmlDeviceGetSamples");
    if (code) return code;
    if (type != 1 || !kind || !count || since) return INVALID_ARGUMENT;
    for (; setting(device->index, "sample", number, value, sizeof value); number++)
        if (found && number < *count) found[number].at = 1, found[number].value.ui = atoi(value);
    *kind = 1;
    *count = number;
    return number ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetProcessUtilization(Device *device, ProcessUse *found, unsigned *count, unsigned long long since) {
    char value[64];
    unsigned number = 0, room;
    int code = enter(device, "nvmlDeviceGetProcessUtilization");
    if (code) return code;
    if (!count || since) return INVALID_ARGUMENT;
    room = found ? *count : 0;
    for (; setting(device->index, "computes", number, value, sizeof value); number++) {
        if (number >= room) continue;
        memset(&found[number], 0, sizeof found[number]);
        if (sscanf(value, "%u %u", &found[number].pid, &found[number].sm) != 2) return UNKNOWN;
    }
    *count = number;
    return !number ? NOT_FOUND : number > room ? INSUFFICIENT_SIZE : SUCCESS;
}
