/* Stand-in for libnvidia-ml.so.1: answers as on a DGX Spark, from the file that the stand-in of
 * nvidia-smi reads too. Return codes are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE "/etc/spark-lab/gpu"
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, LIB_RM_VERSION_MISMATCH = 18 };
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;

static int ready;

static int get(const char *key, char *out, size_t size) {
    char line[256];
    size_t n = strlen(key);
    FILE *f = fopen(STATE, "r");
    out[0] = 0;
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && line[n] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + n + 1);
        }
    fclose(f);
    return out[0] != 0;
}

static int copy(const char *key, char *out, unsigned int size) {
    char value[128];
    if (!ready) return UNINITIALIZED;
    if (!get(key, value, sizeof value)) return NOT_FOUND;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

int nvmlInitWithFlags(unsigned int flags) {
    char status[32];
    (void)flags;
    get("status", status, sizeof status);
    if (!strcmp(status, "not-loaded") || !status[0]) return DRIVER_NOT_LOADED;
    if (!strcmp(status, "mismatch")) return LIB_RM_VERSION_MISMATCH;
    ready++;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!ready) return UNINITIALIZED; ready--; return OK; }

int nvmlSystemGetDriverVersion(char *out, unsigned int size) { return copy("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    char value[128];
    if (!get("driver", value, sizeof value) || strlen(value) + 4 > size) return INSUFFICIENT_SIZE;
    sprintf(out, "13.%s", value);
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *out) {
    char value[32];
    int major = 0, minor = 0;
    get("cuda", value, sizeof value);
    if (sscanf(value, "%d.%d", &major, &minor) != 2) return NOT_FOUND;
    *out = major * 1000 + minor * 10;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(unsigned int *out) {
    char status[32];
    if (!ready) return UNINITIALIZED;
    get("status", status, sizeof status);
    *out = strcmp(status, "no-device") ? 1 : 0;
    return OK;
}
int nvmlDeviceGetCount(unsigned int *out) { return nvmlDeviceGetCount_v2(out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **out) {
    unsigned int count = 0;
    int rc = nvmlDeviceGetCount_v2(&count);
    if (rc) return rc;
    if (index >= count) return INVALID_ARGUMENT;
    *out = &ready;
    return OK;
}
int nvmlDeviceGetHandleByIndex(unsigned int i, void **out) { return nvmlDeviceGetHandleByIndex_v2(i, out); }

int nvmlDeviceGetName(void *d, char *out, unsigned int size) { (void)d; return copy("name", out, size); }
int nvmlDeviceGetUUID(void *d, char *out, unsigned int size) { (void)d; return copy("uuid", out, size); }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    char value[32];
    (void)d;
    if (!ready) return UNINITIALIZED;
    get("compute_cap", value, sizeof value);
    return sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_FOUND;
}

static int memory(unsigned long long *total) {
    char value[32];
    if (!ready) return UNINITIALIZED;
    if (!get("memory_mib", value, sizeof value)) return NOT_SUPPORTED; /* GB10: unified memory */
    *total = strtoull(value, 0, 10) << 20;
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *out) {
    unsigned long long total = 0;
    int rc = memory(&total);
    (void)d;
    if (!rc) { out->total = out->free = total; out->used = 0; }
    return rc;
}
int nvmlDeviceGetMemoryInfo_v2(void *d, memory_v2_t *out) {
    unsigned long long total = 0;
    int rc = memory(&total);
    (void)d;
    if (!rc) { out->total = out->free = total; out->used = out->reserved = 0; }
    return rc;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}
