/* What is read off one device. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

/* A call with one result: whether the device has such a thing at all, and the result. */
#define VALUE(name, type, has_it, result)                                           \
    API nvmlReturn_t name(nvmlDevice_t handle, type *out) {                         \
        struct seen seen;                                                           \
        nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);                    \
        const struct gy_device *device = &seen.device;                              \
        const struct gy_product *product = &seen.product;                           \
        (void)device, (void)product;                                                \
        if (status == NVML_SUCCESS && !(has_it)) status = NVML_ERROR_NOT_SUPPORTED; \
        if (status == NVML_SUCCESS) *out = (type)(result);                          \
        return status;                                                              \
    }

/* A text of the device; identity can be asked of a lost device too. */
#define TEXT(name, look, has_it, result)                                             \
    API nvmlReturn_t name(nvmlDevice_t handle, char *out, unsigned length) {         \
        struct seen seen;                                                            \
        nvmlReturn_t status = look(handle, out, &seen);                              \
        if (status != NVML_SUCCESS) return status;                                   \
        return (has_it) ? nvml_copy(out, length, result) : NVML_ERROR_NOT_SUPPORTED; \
    }

/* --------------------------------------------------------------------------------------------------------- identity */

TEXT(nvmlDeviceGetUUID, nvml_identify, 1, seen.kind == DEVICE_HANDLE ? seen.device.uuid : seen.mig.uuid)
TEXT(nvmlDeviceGetSerial, nvml_identify, *seen.device.serial, seen.device.serial)
TEXT(nvmlDeviceGetVbiosVersion, nvml_look, *seen.product.vbios, seen.product.vbios)
TEXT(nvmlDeviceGetBoardPartNumber, nvml_look, *seen.product.part_number, seen.product.part_number)

/* An instance is called after its GPU: "NVIDIA A100-SXM4-80GB MIG 1g.10gb". */
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *out, unsigned length) {
    struct seen seen;
    char text[GY_NAME + GY_TEXT + 8];
    nvmlReturn_t status = nvml_identify(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.kind == DEVICE_HANDLE) return nvml_copy(out, length, seen.product.name);
    snprintf(text, sizeof text, "%s MIG %s", seen.product.name, seen.mig.profile_name);
    return nvml_copy(out, length, text);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, index, &seen);
    if (status == NVML_SUCCESS) *index = seen.kind == DEVICE_HANDLE ? seen.index : seen.mig.index;
    return status;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, minor, &seen);
    if (status == NVML_SUCCESS) *minor = seen.device.minor;
    return status;
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct pci_info_old {
    char bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
};

struct pci_info_ext {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

#define FILL_PCI(out, seen)                           \
    (out)->domain = (seen)->device.pci_domain;        \
    (out)->bus = (seen)->device.pci_bus;              \
    (out)->device = (seen)->device.pci_device;        \
    (out)->device_id = (seen)->product.pci_device_id; \
    (out)->subsystem_id = (seen)->product.pci_subsystem_id

static void short_bus_id(char *out, size_t size, const struct gy_device *device) {
    snprintf(out, size, "%04X:%02X:%02X.0", device->pci_domain & 0xFFFFu, device->pci_bus & 0xFFu,
             device->pci_device & 0xFFu);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, struct pci_info *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    memset(out, 0, sizeof *out);
    FILL_PCI(out, &seen);
    short_bus_id(out->bus_id_legacy, sizeof out->bus_id_legacy, &seen.device);
    memcpy(out->bus_id, seen.device.pci_bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, struct pci_info_old *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    memset(out, 0, sizeof *out);
    FILL_PCI(out, &seen);
    short_bus_id(out->bus_id, sizeof out->bus_id, &seen.device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, struct pci_info_old *out) {
    return nvmlDeviceGetPciInfo_v2(handle, out);
}

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, struct pci_info_ext *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_identify(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct pci_info_ext, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    FILL_PCI(out, &seen);
    out->base_class = 0x03; /* A display controller, */
    out->sub_class = 0x02;  /* for 3D. */
    memcpy(out->bus_id, seen.device.pci_bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

VALUE(nvmlDeviceGetBrand, unsigned, 1, product->brand)
VALUE(nvmlDeviceGetArchitecture, unsigned, 1, product->architecture)
VALUE(nvmlDeviceGetBoardId, unsigned, 1, device->pci_bus << 8)
VALUE(nvmlDeviceGetMultiGpuBoard, unsigned, 1, 0)
VALUE(nvmlDeviceGetNumGpuCores, unsigned, product->cuda_cores, product->cuda_cores)
VALUE(nvmlDeviceGetBusType, unsigned, 1, 2) /* PCI Express */
VALUE(nvmlDeviceGetModuleId, unsigned, product->nvlinks, device->index + 1)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, major && minor ? major : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    *major = (int)seen.product.compute_major;
    *minor = (int)seen.product.compute_minor;
    return NVML_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------------- memory */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static struct memory_v2 memory_of(const struct seen *seen) {
    const struct gy_device *device = &seen->device;
    if (seen->kind == DEVICE_HANDLE)
        return (struct memory_v2){0, device->memory_total_bytes, device->memory_reserved_bytes,
                                  device->memory_free_bytes, device->memory_used_bytes};
    const struct gy_mig *mig = &seen->mig;
    return (struct memory_v2){0, mig->memory_total_bytes, 0, mig->memory_total_bytes - mig->memory_used_bytes,
                              mig->memory_used_bytes};
}

/* The old call counts what the driver keeps for itself as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, struct memory *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    struct memory_v2 memory = memory_of(&seen);
    *out = (struct memory){memory.total, memory.free, memory.total - memory.free};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, struct memory_v2 *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    unsigned version = out->version;
    if (version != VERSION_OF(struct memory_v2, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *out = memory_of(&seen);
    out->version = version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, struct memory *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (!seen.product.bar1_bytes) return NVML_ERROR_NOT_SUPPORTED;
    unsigned long long used = 1u << 20; /* What the driver itself maps. */
    *out = (struct memory){seen.product.bar1_bytes, seen.product.bar1_bytes - used, used};
    return NVML_SUCCESS;
}

VALUE(nvmlDeviceGetMemoryBusWidth, unsigned, product->memory_bus_bits, product->memory_bus_bits)

/* ------------------------------------------------------------------------------------------------------ utilisation */

struct utilization {
    unsigned gpu, memory;
};

/* As with the real library, a GPU in MIG mode has no utilisation as a whole. */
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, struct utilization *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.device.mig_enabled) return NVML_ERROR_NOT_SUPPORTED;
    *out = (struct utilization){seen.device.gpu_percent, seen.device.memory_percent};
    return NVML_SUCCESS;
}

enum { SAMPLING_US = 200000 };

static nvmlReturn_t engine(nvmlDevice_t handle, unsigned *percent, unsigned *period, int decoder) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, percent && period ? percent : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.device.mig_enabled) return NVML_ERROR_NOT_SUPPORTED;
    *percent = decoder ? seen.device.decoder_percent : seen.device.encoder_percent;
    *period = SAMPLING_US;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned *percent, unsigned *period) {
    return engine(handle, percent, period, 0);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned *percent, unsigned *period) {
    return engine(handle, percent, period, 1);
}

struct dynamic_pstates {
    unsigned flags;
    struct {
        unsigned present, percentage, up, down;
    } engines[8];
};

API nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t handle, struct dynamic_pstates *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    const unsigned percent[3] = {seen.device.gpu_percent, seen.device.memory_percent, seen.device.decoder_percent};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 3; i++) {
        out->engines[i].present = 1;
        out->engines[i].percentage = percent[i];
    }
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- temperature and cooling */

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned sensor, unsigned *celsius) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, celsius, &seen);
    if (status != NVML_SUCCESS) return status;
    if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)seen.device.temperature_c;
    return NVML_SUCCESS;
}

struct temperature {
    unsigned version, sensor;
    int celsius;
};

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, struct temperature *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct temperature, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
    out->celsius = seen.device.temperature_c;
    return NVML_SUCCESS;
}

struct margin {
    unsigned version;
    int celsius;
};

API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t handle, struct margin *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct margin, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!seen.product.slowdown_c) return NVML_ERROR_NOT_SUPPORTED;
    out->celsius = (int)seen.product.slowdown_c - seen.device.temperature_c;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned kind, unsigned *celsius) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, celsius, &seen);
    if (status != NVML_SUCCESS) return status;
    if (kind > 7) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned thresholds[8] = {seen.product.shutdown_c,
                                    seen.product.slowdown_c,
                                    seen.product.memory_max_c,
                                    seen.product.gpu_max_c,
                                    0,
                                    0,
                                    0,
                                    0};
    if (!thresholds[kind]) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = thresholds[kind];
    return NVML_SUCCESS;
}

struct thermal_settings {
    unsigned count;
    struct {
        int controller, minimum, maximum, current, target;
    } sensors[3];
};

API nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t handle, unsigned index, struct thermal_settings *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (index != 0 && index != 15) return NVML_ERROR_INVALID_ARGUMENT; /* 15 asks for all sensors. */
    memset(out, 0, sizeof *out);
    out->count = 1;
    out->sensors[0].controller = 1;
    out->sensors[0].maximum = (int)seen.product.shutdown_c;
    out->sensors[0].current = seen.device.temperature_c;
    out->sensors[0].target = 1;
    return NVML_SUCCESS;
}

VALUE(nvmlDeviceGetNumFans, unsigned, 1, product->fans)
VALUE(nvmlDeviceGetFanSpeed, unsigned, device->fan_percent != GY_NONE, device->fan_percent)

static nvmlReturn_t one_fan(nvmlDevice_t handle, unsigned fan, unsigned *percent) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, percent, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.device.fan_percent == GY_NONE) return NVML_ERROR_NOT_SUPPORTED;
    if (fan >= seen.product.fans) return NVML_ERROR_INVALID_ARGUMENT;
    *percent = (unsigned)seen.device.fan_percent;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t handle, unsigned fan, unsigned *percent) {
    return one_fan(handle, fan, percent);
}

API nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t handle, unsigned fan, unsigned *percent) {
    return one_fan(handle, fan, percent);
}

/* ------------------------------------------------------------------------------------------------ power and energy */

VALUE(nvmlDeviceGetPowerUsage, unsigned, 1, device->power_mw)
VALUE(nvmlDeviceGetPowerManagementMode, unsigned, 1, 1)
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, 1, device->power_limit_mw)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 1, device->power_limit_mw)
VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, product->power_default_mw, product->power_default_mw)
VALUE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, product->compute_major >= 7, device->energy_mj)
VALUE(nvmlDeviceGetPowerSource, unsigned, 1, 0)
VALUE(nvmlDeviceGetPerformanceState, unsigned, 1, device->performance_state)
VALUE(nvmlDeviceGetPowerState, unsigned, 1, device->performance_state)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned *least, unsigned *most) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, least && most ? least : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (!seen.product.power_max_mw) return NVML_ERROR_NOT_SUPPORTED;
    *least = seen.product.power_min_mw;
    *most = seen.product.power_max_mw;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t handle, unsigned *states, unsigned size) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, states, &seen);
    if (status != NVML_SUCCESS) return status;
    if (size < 16 * sizeof *states) return NVML_ERROR_INSUFFICIENT_SIZE;
    const unsigned known[] = {0, 2, 5, 8};
    for (int i = 0; i < 16; i++) states[i] = i < 4 ? known[i] : 32; /* 32: unknown */
    return NVML_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------------- clocks */

enum { GRAPHICS, SM, MEMORY, VIDEO, CLOCKS };

static nvmlReturn_t clock_of(nvmlDevice_t handle, unsigned kind, unsigned *mhz, int maximum) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, mhz, &seen);
    if (status != NVML_SUCCESS) return status;
    if (kind >= CLOCKS) return NVML_ERROR_INVALID_ARGUMENT;
    const struct gy_device *now = &seen.device;
    const struct gy_product *most = &seen.product;
    const unsigned current[CLOCKS] = {now->graphics_mhz, now->sm_mhz, now->memory_mhz, now->video_mhz};
    const unsigned highest[CLOCKS] = {most->graphics_max_mhz, most->sm_max_mhz, most->memory_max_mhz,
                                      most->video_max_mhz};
    if (maximum && !highest[kind]) return NVML_ERROR_NOT_SUPPORTED;
    *mhz = maximum ? highest[kind] : current[kind];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned kind, unsigned *mhz) {
    return clock_of(handle, kind, mhz, 0);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned kind, unsigned *mhz) {
    return clock_of(handle, kind, mhz, 1);
}

/* What applications ask for is the highest clock; nobody set anything else. */
API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t handle, unsigned kind, unsigned *mhz) {
    return clock_of(handle, kind, mhz, 1);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t handle, unsigned kind, unsigned *mhz) {
    return clock_of(handle, kind, mhz, 1);
}

API nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t handle, unsigned kind, unsigned *mhz) {
    return clock_of(handle, kind, mhz, 1);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, unsigned kind, unsigned which, unsigned *mhz) {
    if (which > 3) return NVML_ERROR_INVALID_ARGUMENT;
    return clock_of(handle, kind, mhz, which != 0);
}

API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t handle, unsigned *count, unsigned *mhz) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
    if (status != NVML_SUCCESS) return status;
    unsigned room = *count;
    *count = 1;
    if (room < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!mhz) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = seen.product.memory_max_mhz;
    return NVML_SUCCESS;
}

enum { STEP_MHZ = 15, LEAST_MHZ = 210 };

API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t handle, unsigned memory, unsigned *count,
                                                      unsigned *mhz) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
    if (status != NVML_SUCCESS) return status;
    unsigned most = seen.product.graphics_max_mhz, room = *count;
    if (memory != seen.product.memory_max_mhz) return NVML_ERROR_NOT_FOUND;
    *count = most >= LEAST_MHZ ? (most - LEAST_MHZ) / STEP_MHZ + 1 : 0;
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!mhz) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < *count; i++) mhz[i] = most - i * STEP_MHZ;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t handle, unsigned kind, unsigned state, unsigned *least,
                                                  unsigned *most) {
    if (!least || state > 15) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t status = clock_of(handle, kind, most, 1);
    if (status == NVML_SUCCESS) *least = *most < LEAST_MHZ ? *most : LEAST_MHZ;
    return status;
}

/* Every reason to hold the clocks back that a reading can name. */
enum { SUPPORTED_REASONS = 0x1FF };

VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1, device->throttle_reasons)
VALUE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1, device->throttle_reasons)
VALUE(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1, SUPPORTED_REASONS)
VALUE(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1, SUPPORTED_REASONS)
VALUE(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned, 1, 0)

/* -------------------------------------------------------------------------------------------------------------- ECC */

static nvmlReturn_t two_flags(nvmlDevice_t handle, unsigned *current, unsigned *pending, struct seen *seen) {
    return nvml_look_gpu(handle, current && pending ? current : NULL, seen);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned *current, unsigned *pending) {
    struct seen seen;
    nvmlReturn_t status = two_flags(handle, current, pending, &seen);
    if (status != NVML_SUCCESS) return status;
    if (!seen.device.has_ecc) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

VALUE(nvmlDeviceGetDefaultEccMode, unsigned, device->has_ecc, 1)

static nvmlReturn_t ecc_count(nvmlDevice_t handle, unsigned uncorrected, unsigned aggregate, unsigned long long *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (uncorrected > 1 || aggregate > 1) return NVML_ERROR_INVALID_ARGUMENT;
    if (!seen.device.has_ecc) return NVML_ERROR_NOT_SUPPORTED;
    const struct gy_device *device = &seen.device;
    const unsigned long long counts[2][2] = {{device->ecc_volatile_corrected, device->ecc_aggregate_corrected},
                                             {device->ecc_volatile_uncorrected, device->ecc_aggregate_uncorrected}};
    *out = counts[uncorrected][aggregate];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned kind, unsigned counter,
                                             unsigned long long *count) {
    return ecc_count(handle, kind, counter, count);
}

/* All errors are of the device memory; the caches have none. */
enum { IN_DEVICE_MEMORY = 2, LOCATIONS = 8 };

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned kind, unsigned counter,
                                                 unsigned location, unsigned long long *count) {
    if (location >= LOCATIONS) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t status = ecc_count(handle, kind, counter, count);
    if (status == NVML_SUCCESS && location != IN_DEVICE_MEMORY) *count = 0;
    return status;
}

struct ecc_counts {
    unsigned long long l1_cache, l2_cache, device_memory, register_file;
};

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t handle, unsigned kind, unsigned counter,
                                                struct ecc_counts *out) {
    unsigned long long count;
    nvmlReturn_t status = ecc_count(handle, kind, counter, out ? &count : NULL);
    if (status == NVML_SUCCESS) *out = (struct ecc_counts){0, 0, count, 0};
    return status;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *corrected, unsigned *uncorrected,
                                           unsigned *pending, unsigned *failure) {
    struct seen seen;
    nvmlReturn_t status =
        nvml_look_gpu(handle, corrected && uncorrected && pending && failure ? corrected : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.product.compute_major < 8 || !seen.device.has_ecc) return NVML_ERROR_NOT_SUPPORTED;
    *corrected = seen.device.remapped_rows_corrected;
    *uncorrected = seen.device.remapped_rows_uncorrected;
    *pending = *failure = 0;
    return NVML_SUCCESS;
}

struct row_histogram {
    unsigned max, high, partial, low, none;
};

enum { MEMORY_BANKS = 640 };

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t handle, struct row_histogram *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.product.compute_major < 8 || !seen.device.has_ecc) return NVML_ERROR_NOT_SUPPORTED;
    unsigned rows = seen.device.remapped_rows_corrected + seen.device.remapped_rows_uncorrected;
    unsigned touched = rows < MEMORY_BANKS ? rows : MEMORY_BANKS;
    *out = (struct row_histogram){MEMORY_BANKS - touched, touched, 0, 0, 0};
    return NVML_SUCCESS;
}

/* Pages were retired before rows could be remapped; the fake devices have none retired. */
static nvmlReturn_t no_pages(nvmlDevice_t handle, unsigned *count) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.product.compute_major >= 8 || !seen.device.has_ecc) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned *count, void *addresses) {
    (void)cause, (void)addresses;
    return no_pages(handle, count);
}

API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t handle, unsigned cause, unsigned *count, void *addresses,
                                              void *times) {
    (void)cause, (void)addresses, (void)times;
    return no_pages(handle, count);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, unsigned *pending) {
    return no_pages(handle, pending);
}

/* ----------------------------------------------------------------------------------------------------- PCI and links */

static const unsigned LINK_SPEEDS[7] = {0,     2500,  5000, 8000,
                                        16000, 32000, 64000}; /* Megabits a second, by generation. */

VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, product->pcie_generation, product->pcie_generation)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, product->pcie_generation, product->pcie_generation)
VALUE(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, product->pcie_generation, product->pcie_generation)
VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, product->pcie_width, product->pcie_width)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, product->pcie_width, product->pcie_width)
VALUE(nvmlDeviceGetPcieReplayCounter, unsigned, 1, device->pcie_replays)
VALUE(nvmlDeviceGetPcieSpeed, unsigned, product->pcie_generation, LINK_SPEEDS[product->pcie_generation % 7])
VALUE(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, product->pcie_generation, product->pcie_generation)

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned counter, unsigned *kib_per_s) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, kib_per_s, &seen);
    if (status != NVML_SUCCESS) return status;
    if (counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    *kib_per_s = (unsigned)((counter ? seen.device.pcie_rx_bytes_per_s : seen.device.pcie_tx_bytes_per_s) / 1024);
    return NVML_SUCCESS;
}

/* Not part of a fabric: the GPUs are linked within their machine only. */
struct fabric {
    unsigned char cluster[16];
    unsigned status, clique, state;
};

struct fabric_v {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health;
    unsigned char summary;
};

struct fabric_v2 {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health;
};

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, struct fabric *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status == NVML_SUCCESS) memset(out, 0, sizeof *out);
    return status;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, struct fabric_v *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    unsigned version = out->version;
    if (version == VERSION_OF(struct fabric_v, 3)) memset(out, 0, sizeof *out);
    else if (version == VERSION_OF(struct fabric_v2, 2)) memset(out, 0, sizeof(struct fabric_v2));
    else return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->version = version;
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------ modes */

VALUE(nvmlDeviceGetPersistenceMode, unsigned, 1, 1)
VALUE(nvmlDeviceGetDisplayMode, unsigned, 1, 0)
VALUE(nvmlDeviceGetDisplayActive, unsigned, 1, 0)
VALUE(nvmlDeviceGetVirtualizationMode, unsigned, 1, 0)
VALUE(nvmlDeviceGetAccountingMode, unsigned, 1, 0)
VALUE(nvmlDeviceGetAccountingBufferSize, unsigned, 1, 4000)

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned *mode) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, mode, &seen);
    if (status == NVML_SUCCESS) *mode = 0;
    return status;
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t handle, unsigned *enabled, unsigned *standard) {
    struct seen seen;
    nvmlReturn_t status = two_flags(handle, enabled, standard, &seen);
    if (status == NVML_SUCCESS) *enabled = *standard = seen.product.compute_major >= 8;
    return status;
}

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t handle, unsigned policy, unsigned long long out[2]) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (policy > 11) return NVML_ERROR_INVALID_ARGUMENT;
    out[0] = seen.taken_at_ms * 1000;
    out[1] = 0;
    return NVML_SUCCESS;
}

struct gpm_support {
    unsigned version, supported;
};

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, struct gpm_support *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status == NVML_SUCCESS) out->supported = 0;
    return status;
}
