/* Multi-Instance GPU: the instances a device is cut into, and the profiles it could be cut into. Reading only. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, current && pending ? current : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (!seen.product.mig) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = seen.device.mig_enabled;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
    if (status == NVML_SUCCESS) *count = seen.product.mig_instances_max;
    return status;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is_mig) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, is_mig, &seen);
    if (status == NVML_SUCCESS) *is_mig = seen.kind == MIG_HANDLE;
    return status;
}

/* --------------------------------------------------------------------------------------------------- finding handles */

/* A walk over the instances of a device that this process sees, in their order. */
struct walk {
    int (*take)(struct walk *, const struct gy_reading *, const struct gy_mig *);
    unsigned wanted, found;
    char uuids[64][GY_UUID];
};

static nvmlReturn_t walk(nvmlDevice_t handle, const void *out, struct walk *walk) {
    struct gy_reading reading;
    struct seen seen;
    nvmlReturn_t status;
    do {
        status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!out || !nvml_is_handle(handle, DEVICE_HANDLE)) return NVML_ERROR_INVALID_ARGUMENT;
        status = nvml_find(&reading, handle, &seen);
        walk->found = 0;
        struct gy_span span = {0, 0};
        if (status == NVML_SUCCESS) span = gy_migs_of(&reading, seen.position);
        for (uint32_t i = span.first; i < span.end && walk->found < 64; i++) {
            if (!gy_shows_mig(&nvml_view, &reading, i) || !walk->take(walk, &reading, &reading.migs[i])) continue;
            memcpy(walk->uuids[walk->found++], reading.migs[i].uuid, GY_UUID);
        }
    } while (!nvml_still(&reading));
    if (status != NVML_SUCCESS) return status;
    if (seen.device.health == GY_HEALTH_OFF_THE_BUS) return NVML_ERROR_GPU_IS_LOST;
    return seen.product.mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static int take_all(struct walk *walk, const struct gy_reading *reading, const struct gy_mig *mig) {
    (void)walk, (void)reading, (void)mig;
    return 1;
}

static int take_gpu_instance(struct walk *walk, const struct gy_reading *reading, const struct gy_mig *mig) {
    (void)reading;
    return mig->gpu_instance == walk->wanted;
}

static uint32_t profile_id(const struct gy_reading *reading, const struct gy_mig *mig) {
    if (mig->device >= reading->device_count || mig->profile < 0 || mig->profile >= GY_MIG_PROFILES) return UINT32_MAX;
    uint32_t product = reading->devices[mig->device].product;
    return product < reading->product_count ? reading->products[product].mig_profiles[mig->profile].id : UINT32_MAX;
}

static int take_profile(struct walk *walk, const struct gy_reading *reading, const struct gy_mig *mig) {
    return profile_id(reading, mig) == walk->wanted;
}

static nvmlReturn_t handle_out(enum handle_kind kind, const char *uuid, nvmlDevice_t *out) {
    *out = nvml_handle_for(kind, uuid);
    return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* An instance's index counts those this process sees; an empty place is not found. */
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *mig) {
    struct walk all = {.take = take_all};
    nvmlReturn_t status = walk(handle, mig, &all);
    if (status != NVML_SUCCESS) return status;
    return index < all.found ? handle_out(MIG_HANDLE, all.uuids[index], mig) : NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *handle) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(mig, handle, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.kind != MIG_HANDLE) return NVML_ERROR_INVALID_ARGUMENT;
    return handle_out(DEVICE_HANDLE, seen.device.uuid, handle);
}

/* ------------------------------------------------------------------------------------------------- of one instance */

static nvmlReturn_t instance(nvmlDevice_t handle, enum handle_kind kind, const void *out, struct seen *seen) {
    nvmlReturn_t status = nvml_look(handle, out, seen);
    if (status != NVML_SUCCESS) return status;
    if (seen->kind == kind) return NVML_SUCCESS;
    return kind == MIG_HANDLE ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id) {
    struct seen seen;
    nvmlReturn_t status = instance(handle, MIG_HANDLE, id, &seen);
    if (status == NVML_SUCCESS) *id = seen.mig.gpu_instance;
    return status;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id) {
    struct seen seen;
    nvmlReturn_t status = instance(handle, MIG_HANDLE, id, &seen);
    if (status == NVML_SUCCESS) *id = seen.mig.compute_instance;
    return status;
}

/* A profile of the handle's product, by NVML's number of its kind or by its own id. */
struct profile_search {
    unsigned number;
    int by_kind;
};

static nvmlReturn_t profile_of(nvmlDevice_t handle, const void *out, struct profile_search search,
                               struct gy_mig_profile *profile) {
    struct gy_reading reading;
    struct seen seen;
    nvmlReturn_t status;
    int found = 0;
    do {
        status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!out || !nvml_is_handle(handle, 0)) return NVML_ERROR_INVALID_ARGUMENT;
        status = nvml_find(&reading, handle, &seen);
        found = 0;
        for (uint32_t i = 0; status == NVML_SUCCESS && i < seen.product.mig_profile_count && i < GY_MIG_PROFILES; i++) {
            const struct gy_mig_profile *one = &reading.products[seen.device.product].mig_profiles[i];
            if (found || (search.by_kind ? one->kind : one->id) != search.number) continue;
            memcpy(profile, one, sizeof *profile);
            found = 1;
        }
    } while (!nvml_still(&reading));
    if (status != NVML_SUCCESS) return status;
    if (seen.device.health == GY_HEALTH_OFF_THE_BUS) return NVML_ERROR_GPU_IS_LOST;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The profile an instance was cut by. */
static nvmlReturn_t own_profile(const struct seen *seen, struct gy_mig_profile *profile) {
    struct gy_reading reading;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (seen->mig.profile < 0 || seen->mig.profile >= GY_MIG_PROFILES
            || seen->device.product >= reading.product_count)
            return NVML_ERROR_NOT_SUPPORTED;
        memcpy(profile, &reading.products[seen->device.product].mig_profiles[seen->mig.profile], sizeof *profile);
    } while (!nvml_still(&reading));
    return NVML_SUCCESS;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, struct attributes *out) {
    struct seen seen;
    struct gy_mig_profile profile = {0};
    nvmlReturn_t status = instance(handle, MIG_HANDLE, out, &seen);
    if (status != NVML_SUCCESS) return status;
    own_profile(&seen, &profile);
    *out = (struct attributes){seen.mig.multiprocessors, profile.copy_engines, profile.decoders,
                               profile.encoders,         profile.jpegs,        profile.ofas,
                               seen.mig.slices,          seen.mig.slices,      seen.mig.memory_total_bytes >> 20};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, struct attributes *out) {
    return nvmlDeviceGetAttributes_v2(handle, out);
}

/* --------------------------------------------------------------------------------------------------------- profiles */

struct gpu_profile {
    unsigned id, peer_to_peer, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
};

struct gpu_profile_v2 {
    unsigned version, id, peer_to_peer, slices, instances, multiprocessors;
    unsigned copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
    char name[96];
};

struct gpu_profile_v3 {
    unsigned version, id, slices, instances, multiprocessors;
    unsigned copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
    char name[96];
    unsigned capabilities;
};

enum { PROFILE_KINDS = 18 };

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned kind, struct gpu_profile *out) {
    struct gy_mig_profile profile;
    nvmlReturn_t status =
        profile_of(handle, kind < PROFILE_KINDS ? out : NULL, (struct profile_search){kind, 1}, &profile);
    if (status != NVML_SUCCESS) return status;
    *out = (struct gpu_profile){profile.id,
                                0,
                                profile.slices,
                                profile.instances_max,
                                profile.multiprocessors,
                                profile.copy_engines,
                                profile.decoders,
                                profile.encoders,
                                profile.jpegs,
                                profile.ofas,
                                profile.memory_bytes >> 20};
    return NVML_SUCCESS;
}

#define FILL_PROFILE(out, profile)                       \
    (out)->id = (profile)->id;                           \
    (out)->slices = (profile)->slices;                   \
    (out)->instances = (profile)->instances_max;         \
    (out)->multiprocessors = (profile)->multiprocessors; \
    (out)->copy_engines = (profile)->copy_engines;       \
    (out)->decoders = (profile)->decoders;               \
    (out)->encoders = (profile)->encoders;               \
    (out)->jpegs = (profile)->jpegs;                     \
    (out)->ofas = (profile)->ofas;                       \
    (out)->memory_mib = (profile)->memory_bytes >> 20;   \
    snprintf((out)->name, sizeof(out)->name, "MIG %s", (profile)->name)

static nvmlReturn_t profile_info(nvmlDevice_t handle, struct profile_search search, void *out) {
    struct gy_mig_profile profile;
    nvmlReturn_t status = profile_of(handle, out, search, &profile);
    if (status != NVML_SUCCESS) return status;
    unsigned version = *(unsigned *)out;
    if (version == VERSION_OF(struct gpu_profile_v2, 2)) {
        struct gpu_profile_v2 *info = out;
        FILL_PROFILE(info, &profile);
        info->peer_to_peer = 0;
        return NVML_SUCCESS;
    }
    if (version != VERSION_OF(struct gpu_profile_v3, 3)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct gpu_profile_v3 *info = out;
    FILL_PROFILE(info, &profile);
    info->capabilities = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned kind, void *out) {
    return profile_info(handle, (struct profile_search){kind, 1}, kind < PROFILE_KINDS ? out : NULL);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t handle, unsigned id, void *out) {
    return profile_info(handle, (struct profile_search){id, 0}, out);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned *count) {
    struct gy_mig_profile profile;
    struct walk same = {.take = take_profile, .wanted = id};
    nvmlReturn_t status = profile_of(handle, count, (struct profile_search){id, 0}, &profile);
    if (status == NVML_SUCCESS) status = walk(handle, count, &same);
    if (status == NVML_SUCCESS) *count = same.found < profile.instances_max ? profile.instances_max - same.found : 0;
    return status;
}

/* ------------------------------------------------------------------------------------ GPU instances and compute ones */

static nvmlReturn_t instances(nvmlDevice_t handle, struct walk *wanted, nvmlDevice_t *out, unsigned *count) {
    nvmlReturn_t status = walk(handle, count, wanted);
    if (status != NVML_SUCCESS) return status;
    *count = wanted->found;
    for (unsigned i = 0; out && i < wanted->found && status == NVML_SUCCESS; i++)
        status = handle_out(GPU_INSTANCE_HANDLE, wanted->uuids[i], &out[i]);
    return status;
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned profile, nvmlDevice_t *out, unsigned *count) {
    struct walk same = {.take = take_profile, .wanted = profile};
    return instances(handle, &same, out, count);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlDevice_t *out) {
    struct walk same = {.take = take_gpu_instance, .wanted = id};
    nvmlReturn_t status = walk(handle, out, &same);
    if (status != NVML_SUCCESS) return status;
    return same.found ? handle_out(GPU_INSTANCE_HANDLE, same.uuids[0], out) : NVML_ERROR_NOT_FOUND;
}

struct placement {
    unsigned start, size;
};

struct gpu_instance_info {
    nvmlDevice_t device;
    unsigned id, profile;
    struct placement placement;
};

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlDevice_t handle, struct gpu_instance_info *out) {
    struct seen seen;
    struct gy_mig_profile profile = {0};
    nvmlReturn_t status = instance(handle, GPU_INSTANCE_HANDLE, out, &seen);
    if (status == NVML_SUCCESS) status = own_profile(&seen, &profile);
    if (status != NVML_SUCCESS) return status;
    *out = (struct gpu_instance_info){nvml_handle_for(DEVICE_HANDLE, seen.device.uuid),
                                      seen.mig.gpu_instance,
                                      profile.id,
                                      {seen.mig.index, seen.mig.slices}};
    return NVML_SUCCESS;
}

/* The only compute instance of a GPU instance takes all its slices; the profile's number is slices - 1, and 4 for 7. */
static unsigned compute_profile(unsigned slices) { return slices == 7 ? 4 : slices - 1; }

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlDevice_t handle, unsigned id, nvmlDevice_t *out) {
    struct seen seen;
    nvmlReturn_t status = instance(handle, GPU_INSTANCE_HANDLE, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (id != seen.mig.compute_instance) return NVML_ERROR_NOT_FOUND;
    return handle_out(COMPUTE_INSTANCE_HANDLE, seen.mig.uuid, out);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlDevice_t handle, unsigned profile, nvmlDevice_t *out,
                                                    unsigned *count) {
    struct seen seen;
    nvmlReturn_t status = instance(handle, GPU_INSTANCE_HANDLE, count, &seen);
    if (status != NVML_SUCCESS) return status;
    *count = profile == compute_profile(seen.mig.slices);
    return *count && out ? handle_out(COMPUTE_INSTANCE_HANDLE, seen.mig.uuid, out) : NVML_SUCCESS;
}

struct compute_profile {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};

static nvmlReturn_t compute_profile_info(nvmlDevice_t handle, unsigned kind, struct compute_profile *out,
                                         struct seen *seen) {
    struct gy_mig_profile profile = {0};
    nvmlReturn_t status = instance(handle, GPU_INSTANCE_HANDLE, out, seen);
    if (status == NVML_SUCCESS) status = own_profile(seen, &profile);
    if (status != NVML_SUCCESS) return status;
    if (kind != compute_profile(seen->mig.slices)) return NVML_ERROR_NOT_SUPPORTED;
    *out = (struct compute_profile){kind,
                                    seen->mig.slices,
                                    1,
                                    seen->mig.multiprocessors,
                                    profile.copy_engines,
                                    profile.decoders,
                                    profile.encoders,
                                    profile.jpegs,
                                    profile.ofas};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlDevice_t handle, unsigned kind, unsigned engines,
                                                              struct compute_profile *out) {
    struct seen seen;
    (void)engines;
    return compute_profile_info(handle, kind, out, &seen);
}

struct compute_profile_v2 {
    unsigned version;
    struct compute_profile profile;
    char name[96];
};

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlDevice_t handle, unsigned kind, unsigned engines,
                                                               struct compute_profile_v2 *out) {
    struct seen seen;
    (void)engines;
    nvmlReturn_t status = compute_profile_info(handle, kind, out ? &out->profile : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct compute_profile_v2, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    snprintf(out->name, sizeof out->name, "MIG %s", seen.mig.profile_name);
    return NVML_SUCCESS;
}

struct compute_instance_info {
    nvmlDevice_t device, gpu_instance;
    unsigned id, profile;
    struct placement placement;
};

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlDevice_t handle, struct compute_instance_info *out) {
    struct seen seen;
    nvmlReturn_t status = instance(handle, COMPUTE_INSTANCE_HANDLE, out, &seen);
    if (status != NVML_SUCCESS) return status;
    *out = (struct compute_instance_info){nvml_handle_for(DEVICE_HANDLE, seen.device.uuid),
                                          nvml_handle_for(GPU_INSTANCE_HANDLE, seen.mig.uuid),
                                          seen.mig.compute_instance,
                                          compute_profile(seen.mig.slices),
                                          {0, seen.mig.slices}};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlDevice_t handle, struct compute_instance_info *out) {
    return nvmlComputeInstanceGetInfo_v2(handle, out);
}
