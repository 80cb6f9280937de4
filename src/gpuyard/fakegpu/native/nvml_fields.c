/* The same facts by number: nvmlDeviceGetFieldValues, and the samples of nvmlDeviceGetSamples. */
#include "nvml.h"

#include <string.h>

union value {
    double real;
    int sint;
    unsigned uint;
    unsigned long ulong;
    unsigned long long ull;
    long long sll;
};

enum value_type { REAL = 0, UINT = 1, ULONG = 2, ULL = 3, SLL = 4, SINT = 5 };

struct field {
    unsigned id, scope;
    long long at_us, latency_us;
    unsigned type;
    nvmlReturn_t status;
    union value value;
};

enum field_id {
    ECC_CURRENT = 1,
    ECC_PENDING = 2,
    ECC_FIRST_COUNT = 3, /* single and double bit, volatile and aggregate: 3 to 6 */
    ECC_LAST_TOTAL = 6,
    ECC_VOLATILE_DEVICE_SINGLE = 11,
    ECC_VOLATILE_DEVICE_DOUBLE = 12,
    ECC_AGGREGATE_DEVICE_SINGLE = 22,
    ECC_AGGREGATE_DEVICE_DOUBLE = 23,
    ECC_LAST_LOCATION = 28,
    MEMORY_TEMPERATURE = 82,
    TOTAL_ENERGY = 83,
    NVLINK_SPEED_COMMON = 90,
    NVLINK_LINK_COUNT = 91,
    PCIE_REPLAYS = 94,
    NVLINK_DATA_TX_KIB = 138,
    NVLINK_DATA_RX_KIB = 139,
    NVLINK_RAW_TX_KIB = 140,
    NVLINK_RAW_RX_KIB = 141,
    REMAPPED_CORRECTED = 142,
    REMAPPED_UNCORRECTED = 143,
    REMAPPED_PENDING = 144,
    REMAPPED_FAILURE = 145,
    NVSWITCH_LINK_COUNT = 147,
    NVLINK_GET_SPEED = 164,
    NVLINK_GET_STATE = 165,
    NVLINK_GET_VERSION = 166,
    POWER_AVERAGE = 185,
    POWER_INSTANT = 186,
    POWER_MIN_LIMIT = 187,
    POWER_MAX_LIMIT = 188,
    POWER_DEFAULT_LIMIT = 189,
    POWER_CURRENT_LIMIT = 190,
    ENERGY = 191,
    POWER_REQUESTED_LIMIT = 192,
    SHUTDOWN_MARGIN = 193,
    SLOWDOWN_MARGIN = 194,
    NVLINK_XMIT_BYTES = 202,
    NVLINK_RCV_BYTES = 204,
    RECOVERY_ACTION = 230,
    FIELDS = 308
};

static void give(struct field *field, enum value_type type, unsigned long long value) {
    field->status = NVML_SUCCESS;
    field->type = type;
    field->value.ull = value;
}

static void give_if(struct field *field, int has_it, enum value_type type, unsigned long long value) {
    if (has_it) give(field, type, value);
    else field->status = NVML_ERROR_NOT_SUPPORTED;
}

/* What left is half of what passed, what arrived is the rest, so that both together are the whole. */
static unsigned long long sent(const struct seen *seen) { return seen->device.nvlink_bytes / 2; }
static unsigned long long received(const struct seen *seen) { return seen->device.nvlink_bytes - sent(seen); }

static void ecc_field(struct field *field, const struct seen *seen) {
    const struct gy_device *device = &seen->device;
    unsigned long long value = 0;
    switch (field->id) {
        case ECC_CURRENT:
        case ECC_PENDING: value = 1; break;
        case ECC_FIRST_COUNT:
        case ECC_VOLATILE_DEVICE_SINGLE: value = device->ecc_volatile_corrected; break;
        case ECC_FIRST_COUNT + 1:
        case ECC_VOLATILE_DEVICE_DOUBLE: value = device->ecc_volatile_uncorrected; break;
        case ECC_FIRST_COUNT + 2:
        case ECC_AGGREGATE_DEVICE_SINGLE: value = device->ecc_aggregate_corrected; break;
        case ECC_LAST_TOTAL:
        case ECC_AGGREGATE_DEVICE_DOUBLE: value = device->ecc_aggregate_uncorrected; break;
        default: break; /* The caches have no errors. */
    }
    give_if(field, device->has_ecc, field->id <= ECC_PENDING ? UINT : ULL, value);
}

static void link_field(struct field *field, const struct seen *seen) {
    int links = seen->product.nvlinks > 0;
    switch (field->id) {
        case NVLINK_LINK_COUNT:
        case NVSWITCH_LINK_COUNT: give(field, UINT, seen->product.nvlinks); return;
        case NVLINK_SPEED_COMMON:
        case NVLINK_GET_SPEED: give_if(field, links, UINT, seen->product.nvlink_mb_per_s); return;
        case NVLINK_GET_STATE: give_if(field, links, UINT, 1); return;
        case NVLINK_GET_VERSION: give_if(field, links, UINT, seen->product.nvlink_version); return;
        case NVLINK_DATA_TX_KIB:
        case NVLINK_RAW_TX_KIB: give_if(field, links, ULL, sent(seen) / 1024); return;
        case NVLINK_DATA_RX_KIB:
        case NVLINK_RAW_RX_KIB: give_if(field, links, ULL, received(seen) / 1024); return;
        case NVLINK_XMIT_BYTES: give_if(field, links, ULL, sent(seen)); return;
        case NVLINK_RCV_BYTES: give_if(field, links, ULL, received(seen)); return;
        default: field->status = NVML_ERROR_NOT_SUPPORTED;
    }
}

static void power_field(struct field *field, const struct seen *seen) {
    const struct gy_product *product = &seen->product;
    switch (field->id) {
        case POWER_AVERAGE:
        case POWER_INSTANT: give(field, UINT, seen->device.power_mw); return;
        case POWER_MIN_LIMIT: give_if(field, product->power_min_mw > 0, UINT, product->power_min_mw); return;
        case POWER_MAX_LIMIT: give_if(field, product->power_max_mw > 0, UINT, product->power_max_mw); return;
        case POWER_DEFAULT_LIMIT:
            give_if(field, product->power_default_mw > 0, UINT, product->power_default_mw);
            return;
        default: give(field, UINT, seen->device.power_limit_mw);
    }
}

static void margin_field(struct field *field, const struct seen *seen) {
    unsigned limit = field->id == SHUTDOWN_MARGIN ? seen->product.shutdown_c : seen->product.slowdown_c;
    give_if(field, limit > 0, SINT, 0);
    if (limit) field->value.sint = (int)limit - seen->device.temperature_c;
}

static void fill(struct field *field, const struct seen *seen) {
    const struct gy_device *device = &seen->device;
    int rows = device->has_ecc && seen->product.compute_major >= 8;
    int energy = seen->product.compute_major >= 7;
    switch (field->id) {
        case MEMORY_TEMPERATURE:
            give_if(field, device->memory_temperature_c != GY_NONE, UINT, (unsigned)device->memory_temperature_c);
            return;
        case TOTAL_ENERGY:
        case ENERGY: give_if(field, energy, ULL, device->energy_mj); return;
        case PCIE_REPLAYS: give(field, UINT, device->pcie_replays); return;
        case REMAPPED_CORRECTED: give_if(field, rows, UINT, device->remapped_rows_corrected); return;
        case REMAPPED_UNCORRECTED: give_if(field, rows, UINT, device->remapped_rows_uncorrected); return;
        case REMAPPED_PENDING:
        case REMAPPED_FAILURE: give_if(field, rows, UINT, 0); return;
        case RECOVERY_ACTION: give(field, UINT, device->health == GY_HEALTH_OK ? 0 : 1); return; /* none, or reset */
        case SHUTDOWN_MARGIN:
        case SLOWDOWN_MARGIN: margin_field(field, seen); return;
        default: break;
    }
    if (field->id >= ECC_CURRENT && field->id <= ECC_LAST_LOCATION) ecc_field(field, seen);
    else if (field->id >= POWER_AVERAGE && field->id <= POWER_REQUESTED_LIMIT) power_field(field, seen);
    else if (field->id == 0 || field->id >= FIELDS) field->status = NVML_ERROR_INVALID_ARGUMENT;
    else link_field(field, seen);
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, struct field *fields) {
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, count > 0 ? fields : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    for (int i = 0; i < count; i++) {
        fields[i].at_us = (long long)seen.taken_at_ms * 1000;
        fields[i].latency_us = 0;
        fields[i].value.ull = 0;
        if (seen.kind == DEVICE_HANDLE) fill(&fields[i], &seen);
        else fields[i].status = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------- samples */

struct sample {
    unsigned long long at_us;
    union value value;
};

enum { SAMPLE_KINDS = 7 };

/* There is one sample: the reading. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, unsigned kind, unsigned long long seen_us, unsigned *type,
                                      unsigned *count, struct sample *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, type && count ? type : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (kind >= SAMPLE_KINDS) return NVML_ERROR_INVALID_ARGUMENT;
    const struct gy_device *device = &seen.device;
    const unsigned values[SAMPLE_KINDS] = {device->power_mw,        device->gpu_percent,     device->memory_percent,
                                           device->encoder_percent, device->decoder_percent, device->sm_mhz,
                                           device->memory_mhz};
    *type = UINT;
    if (seen.taken_at_ms * 1000 <= seen_us) return NVML_ERROR_NOT_FOUND;
    if (out && *count < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = 1;
    if (!out) return NVML_SUCCESS;
    memset(out, 0, sizeof *out);
    out->at_us = seen.taken_at_ms * 1000;
    out->value.uint = values[kind];
    return NVML_SUCCESS;
}
