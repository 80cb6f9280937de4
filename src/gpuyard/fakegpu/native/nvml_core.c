/* Beginning and ending, handles, and how a call sees its device. */
#include "nvml.h"

#include <string.h>

enum { HANDLES = 4096 };

struct gy_view nvml_view;

static int initialized; /* How often nvmlInit was called and not yet ended. */
static int lock;
static struct nvml_handle handles[HANDLES];
static int handle_count;

static void enter(void) {
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) continue;
}

static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static nvmlReturn_t code_of(enum gy_status status) {
    switch (status) {
        case GY_OK: return NVML_SUCCESS;
        case GY_NO_STATE: return NVML_ERROR_DRIVER_NOT_LOADED;
        case GY_OTHER_VERSION: return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        default: return NVML_ERROR_UNKNOWN;
    }
}

/* ------------------------------------------------------------------------------------------------ beginning and end */

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    enter();
    nvmlReturn_t status = initialized ? NVML_SUCCESS : code_of(gy_open(&nvml_view));
    if (status == NVML_SUCCESS) __atomic_store_n(&initialized, initialized + 1, __ATOMIC_RELEASE);
    leave();
    return status;
}

API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    enter();
    nvmlReturn_t status = initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialized) __atomic_store_n(&initialized, initialized - 1, __ATOMIC_RELEASE);
    if (status == NVML_SUCCESS && !initialized) gy_close(&nvml_view);
    leave();
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- reading */

nvmlReturn_t nvml_begin(struct gy_reading *reading) {
    if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE)) return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t status = code_of(gy_follow(&nvml_view));
    if (status == NVML_SUCCESS) *reading = gy_begin(&nvml_view);
    return status;
}

int nvml_still(const struct gy_reading *reading) { return gy_still(&nvml_view, reading); }

static nvmlReturn_t found_at(const struct gy_reading *reading, uint32_t position, struct seen *seen) {
    const struct gy_device *device = &reading->devices[position];
    uint32_t product = device->product;
    if (product >= reading->product_count) return NVML_ERROR_GPU_IS_LOST;
    seen->position = position;
    seen->taken_at_ms = reading->machine->taken_at_ms;
    memcpy(&seen->device, device, sizeof seen->device);
    memcpy(&seen->product, &reading->products[product], offsetof(struct gy_product, mig_profiles));
    seen->index = 0;
    for (uint32_t i = 0; i < position; i++) seen->index += (unsigned)gy_shows_device(&nvml_view, reading, i);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_find(const struct gy_reading *reading, nvmlDevice_t handle, struct seen *seen) {
    seen->kind = handle->kind;
    if (handle->kind == DEVICE_HANDLE) {
        for (uint32_t i = 0; i < reading->device_count; i++)
            if (!strcmp(reading->devices[i].uuid, handle->uuid)) return found_at(reading, i, seen);
        return NVML_ERROR_GPU_IS_LOST;
    }
    for (uint32_t i = 0; i < reading->mig_count; i++) {
        if (strcmp(reading->migs[i].uuid, handle->uuid)) continue;
        memcpy(&seen->mig, &reading->migs[i], sizeof seen->mig);
        return seen->mig.device < reading->device_count ? found_at(reading, seen->mig.device, seen)
                                                        : NVML_ERROR_GPU_IS_LOST;
    }
    return NVML_ERROR_NOT_FOUND; /* The instance was destroyed. */
}

nvmlReturn_t nvml_identify(nvmlDevice_t handle, const void *out, struct seen *seen) {
    struct gy_reading reading;
    nvmlReturn_t status;
    do {
        status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!out || !nvml_is_handle(handle, 0)) return NVML_ERROR_INVALID_ARGUMENT;
        status = nvml_find(&reading, handle, seen);
    } while (!nvml_still(&reading));
    return status;
}

nvmlReturn_t nvml_look(nvmlDevice_t handle, const void *out, struct seen *seen) {
    nvmlReturn_t status = nvml_identify(handle, out, seen);
    if (status == NVML_SUCCESS && seen->device.health == GY_HEALTH_OFF_THE_BUS) return NVML_ERROR_GPU_IS_LOST;
    return status;
}

nvmlReturn_t nvml_look_gpu(nvmlDevice_t handle, const void *out, struct seen *seen) {
    nvmlReturn_t status = nvml_look(handle, out, seen);
    return status == NVML_SUCCESS && seen->kind != DEVICE_HANDLE ? NVML_ERROR_NOT_SUPPORTED : status;
}

/* ---------------------------------------------------------------------------------------------------------- handles */

nvmlDevice_t nvml_handle_for(enum handle_kind kind, const char *uuid) {
    enter();
    int count = handle_count;
    int i = 0;
    while (i < count && (handles[i].kind != kind || strcmp(handles[i].uuid, uuid))) i++;
    if (i == count && count < HANDLES) {
        handles[i].kind = kind;
        strncpy(handles[i].uuid, uuid, GY_UUID - 1);
        __atomic_store_n(&handle_count, count + 1, __ATOMIC_RELEASE);
    }
    leave();
    return i < HANDLES ? &handles[i] : NULL;
}

int nvml_is_handle(const void *handle, enum handle_kind kind) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
    if (offset % sizeof(struct nvml_handle)) return 0;
    uintptr_t place = offset / sizeof(struct nvml_handle);
    if (place >= (uintptr_t)__atomic_load_n(&handle_count, __ATOMIC_ACQUIRE)) return 0;
    return kind == 0 || handles[place].kind == kind;
}

/* ------------------------------------------------------------------------------------------------------------ tools */

nvmlReturn_t nvml_copy(char *out, unsigned length, const char *text) {
    size_t needed = strlen(text) + 1;
    if (needed > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, needed);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_list_status(unsigned room, unsigned found) {
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
