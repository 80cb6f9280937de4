/* Events: who registered for what, and waiting for it.
 *
 * The state file keeps the last events of the machine, numbered. A set remembers the number it has come to; waiting looks
 * at the file's count every few milliseconds, which costs no system call but the sleep.
 */
#include "nvml.h"

#include <string.h>
#include <time.h>

enum { SETS = 64, REGISTRATIONS = 256, LOOK_EVERY_MS = 10 };

enum { SINGLE_BIT_ECC = 0x1, DOUBLE_BIT_ECC = 0x2, PERFORMANCE_STATE = 0x4, XID = 0x8 };

struct registration {
    nvmlDevice_t handle;
    unsigned long long types;
    uint64_t since; /* The first event it may get. */
};

struct nvml_event_set {
    int used;
    int count;
    uint64_t next;
    struct registration registrations[REGISTRATIONS];
};

typedef struct nvml_event_set *nvmlEventSet_t;

struct event_data_v1 {
    nvmlDevice_t device;
    unsigned long long type, data;
};

struct event_data {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static struct nvml_event_set sets[SETS];

static int is_set(const struct nvml_event_set *set) {
    uintptr_t offset = (uintptr_t)set - (uintptr_t)sets;
    return offset < sizeof sets && offset % sizeof *sets == 0 && __atomic_load_n(&set->used, __ATOMIC_ACQUIRE);
}

static nvmlReturn_t event_count(uint64_t *count) {
    struct gy_reading reading;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        *count = reading.machine->event_count;
    } while (!nvml_still(&reading));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    uint64_t count;
    nvmlReturn_t status = event_count(&count);
    if (status != NVML_SUCCESS) return status;
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < SETS; i++) {
        if (__atomic_exchange_n(&sets[i].used, 1, __ATOMIC_ACQ_REL)) continue;
        sets[i].count = 0;
        sets[i].next = count;
        *set = &sets[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    uint64_t count;
    nvmlReturn_t status = event_count(&count);
    if (status != NVML_SUCCESS) return status;
    if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_store_n(&set->used, 0, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------- registering */

static unsigned long long supported(const struct seen *seen) {
    unsigned long long ecc = seen->device.has_ecc ? SINGLE_BIT_ECC | DOUBLE_BIT_ECC : 0;
    return XID | PERFORMANCE_STATE | ecc;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, types, &seen);
    if (status == NVML_SUCCESS) *types = supported(&seen);
    return status;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
    struct seen seen;
    uint64_t count;
    nvmlReturn_t status = nvml_look_gpu(handle, set, &seen);
    if (status == NVML_SUCCESS) status = event_count(&count);
    if (status != NVML_SUCCESS) return status;
    if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~supported(&seen)) return NVML_ERROR_NOT_SUPPORTED;
    if (set->count == REGISTRATIONS) return NVML_ERROR_MEMORY;
    set->registrations[set->count++] = (struct registration){handle, types, count};
    return NVML_SUCCESS;
}

/* -------------------------------------------------------------------------------------------------------- waiting */

static nvmlDevice_t listener(const struct nvml_event_set *set, const struct gy_event *event, uint64_t number) {
    for (int i = 0; i < set->count; i++) {
        const struct registration *one = &set->registrations[i];
        if (number >= one->since && (one->types & event->type) && !strcmp(one->handle->uuid, event->uuid))
            return one->handle;
    }
    return NULL;
}

/* The next event the set asked for, if there is one. Events older than the file remembers are gone. */
static nvmlReturn_t next_event(struct nvml_event_set *set, struct event_data *out) {
    for (;;) {
        struct gy_reading reading;
        struct gy_event event;
        uint64_t count, number;
        do {
            nvmlReturn_t status = nvml_begin(&reading);
            if (status != NVML_SUCCESS) return status;
            count = reading.machine->event_count;
            number = set->next;
            if (number > count) number = count; /* A new writer began to count anew. */
            if (count - number > GY_EVENTS) number = count - GY_EVENTS;
            memcpy(&event, &reading.machine->events[number % GY_EVENTS], sizeof event);
        } while (!nvml_still(&reading));
        set->next = number;
        if (number == count) return NVML_ERROR_TIMEOUT;
        set->next = number + 1;
        nvmlDevice_t device = listener(set, &event, number);
        if (!device) continue;
        *out = (struct event_data){device, event.type, event.data, (unsigned)event.gpu_instance,
                                   (unsigned)event.compute_instance};
        return NVML_SUCCESS;
    }
}

static int lost(const struct nvml_event_set *set) {
    struct seen seen;
    for (int i = 0; i < set->count; i++)
        if (nvml_look(set->registrations[i].handle, &seen, &seen) == NVML_ERROR_GPU_IS_LOST) return 1;
    return 0;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

static void sleep_ms(long long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* What happened comes first; then a lost device is an error; then the time runs out. */
static nvmlReturn_t wait_for(struct nvml_event_set *set, struct event_data *out, unsigned timeout_ms) {
    long long end = now_ms() + timeout_ms;
    for (;;) {
        nvmlReturn_t status = next_event(set, out);
        if (status != NVML_ERROR_TIMEOUT) return status;
        if (lost(set)) return NVML_ERROR_GPU_IS_LOST;
        long long left = end - now_ms();
        if (left <= 0) return NVML_ERROR_TIMEOUT;
        sleep_ms(left < LOOK_EVERY_MS ? left : LOOK_EVERY_MS);
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event_data *out, unsigned timeout_ms) {
    uint64_t count;
    nvmlReturn_t status = event_count(&count);
    if (status != NVML_SUCCESS) return status;
    return is_set(set) && out ? wait_for(set, out, timeout_ms) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data_v1 *out, unsigned timeout_ms) {
    struct event_data data;
    nvmlReturn_t status = nvmlEventSetWait_v2(set, out ? &data : NULL, timeout_ms);
    if (status == NVML_SUCCESS) *out = (struct event_data_v1){data.device, data.type, data.data};
    return status;
}
